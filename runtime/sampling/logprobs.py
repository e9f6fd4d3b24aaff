"""Log-probabilities of the raw logits, with the most likely alternatives."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..messages import TokenLogprob
from .values import floats_of, ints_of


def row_logprobs(
    logits_V: Tensor, token_id: int, num_top: int
) -> tuple[float, tuple[tuple[int, float], ...]]:
    """The token's log-softmax, and the `num_top` most likely (id, log-softmax) pairs.

    Most likely first; of equally likely tokens the lower id comes first.
    """
    found = logprobs_of(logits_V[None], [token_id], num_top)[0]
    assert found.logprob is not None
    return found.logprob, found.top


def logprobs_of(logits_TV: Tensor, targets: Sequence[int], num_top: int) -> list[TokenLogprob]:
    """For each row, the log-softmax of its target id and of the `num_top` most likely ids.

    The matrix is turned into float32 at once: callers pass long prompts in blocks of rows.
    Order of `top`: most likely first, of equally likely tokens the lower id first.
    """
    assert logits_TV.shape[0] == len(targets), (logits_TV.shape, len(targets))
    logits = logits_TV.float()
    normalizer_T = logits.logsumexp(dim=-1)
    target_T = torch.tensor(targets, device=logits.device)
    logprobs = floats_of(logits.gather(-1, target_T[:, None])[:, 0] - normalizer_T)
    tops = _top_rows(logits, normalizer_T, num_top)
    return [
        TokenLogprob(token_id, logprob, top)
        for token_id, logprob, top in zip(targets, logprobs, tops, strict=True)
    ]


def _top_rows(
    logits_TV: Tensor, normalizer_T: Tensor, num_top: int
) -> list[tuple[tuple[int, float], ...]]:
    num_rows, width = logits_TV.shape
    count = min(num_top, width)
    if count == 0:
        return [()] * num_rows
    # topk breaks ties as it likes, so take what reaches the last value, lowest ids first.
    threshold_T = logits_TV.topk(count, dim=-1).values[:, -1]
    rows: list[tuple[tuple[int, float], ...]] = []
    for logits_V, threshold, normalizer in zip(logits_TV, threshold_T, normalizer_T, strict=True):
        ids = (logits_V >= threshold).nonzero()[:, 0]
        order = logits_V[ids].argsort(descending=True, stable=True)[:count]
        best = ids[order]
        values = floats_of(logits_V[best] - normalizer)
        rows.append(tuple(zip(ints_of(best), values, strict=True)))
    return rows
