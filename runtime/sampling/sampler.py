"""Chooses each row's next token; knows logits and parameters, nothing of requests.

The order for one row: penalties, logit_bias, banned ids and bitmask, top_k, temperature,
top_p, min_p, then Gumbel-max over the tokens that are left. Log-probabilities are those of
the raw logits, before all of this. A row's result depends on that row alone.

Of a row whose bitmask leaves few tokens, and that asks for no log-probabilities, the logits of
those are all that is looked at; of one that leaves a single token, none.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from espalier.kernels.noise import gumbel_noise
from espalier.kernels.reference import apply_bitmask

from .filters import Candidates, keep_min_p, keep_top_k, keep_top_p
from .logprobs import row_logprobs
from .params import SamplingParams
from .values import floats_of, ints_of

logger = logging.getLogger(__name__)

IntArray = npt.NDArray[np.int32] | npt.NDArray[np.int64]
Bitmask = npt.NDArray[np.int32]

MAX_FEW = 4096
"""Tokens that a bitmask may leave to be few."""

_MAX_LOGIT = torch.finfo(torch.float32).max

NOT_FINITE = "the model's logits are not finite (NaN or infinity)"
NO_TOKEN = "no token is allowed: the constraint and the banned tokens leave none"


@dataclass(frozen=True, slots=True)
class SampleRow:
    """How to sample one row.

    `position` is the position that the new token will have in its sequence; with `seed` and
    `choice` it selects the row's random numbers. `prompt_ids` and `output_ids` are needed
    only where a penalty is active: the repetition penalty counts both, the others the output.
    `banned` ids can't be sampled. `bitmask` is one row of a grammar's mask: ceil(V / 32)
    words, bit i % 32 of word i // 32 for token i. `num_top` asks for log-probabilities: of
    the sampled token, and of that many most likely ones.
    """

    params: SamplingParams
    seed: int
    choice: int
    position: int
    prompt_ids: IntArray | None = None
    output_ids: IntArray | None = None
    banned: tuple[int, ...] = ()
    bitmask: Bitmask | None = None
    num_top: int | None = None


@dataclass(frozen=True, slots=True)
class Sampled:
    """A row's token; `logprob` and `top` where asked for.

    With `failure` set there is no token (`token_id` is -1) and the request must end with
    that error.
    """

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    failure: str | None = None


def sample(logits_SV: Tensor, rows: Sequence[SampleRow]) -> list[Sampled]:
    """One token for each row of `logits_SV` (any float type; not changed)."""
    assert logits_SV.shape[0] == len(rows), (logits_SV.shape, len(rows))
    if not rows:
        return []
    # argmax returns the first of equals, and a NaN before any number.
    best_S = logits_SV.argmax(dim=-1)
    peak_S = logits_SV.gather(-1, best_S[:, None]).squeeze(-1)
    results: list[Sampled] = []
    winners = zip(rows, ints_of(best_S), floats_of(peak_S), strict=True)
    for index, (row, best_id, peak) in enumerate(winners):
        results.append(_sample_alone(logits_SV[index], row, best_id, peak))
    return results


def _sample_alone(logits_V: Tensor, row: SampleRow, best_id: int, peak: float) -> Sampled:
    """Whatever goes wrong with a row is that row's failure, never the step's.

    `best_id` is the argmax of the raw logits and `peak` that logit, NaN if there is any.
    """
    try:
        few = _few_allowed(row, len(logits_V))
        if few is not None:
            return _sample_few(logits_V, row, few)
        if math.isnan(peak) or peak == math.inf:
            return Sampled(-1, failure=NOT_FINITE)
        return _sample_row(logits_V, row, best_id)
    except Exception as error:
        logger.exception("sampling failed: %s", row)
        return Sampled(-1, failure=f"sampling failed: {error}")


def _few_allowed(row: SampleRow, vocab_size: int) -> npt.NDArray[np.int64] | None:
    """The ids that may be sampled, ascending, if the bitmask leaves few."""
    if row.bitmask is None or row.num_top is not None:
        return None
    bits = np.unpackbits(row.bitmask.view(np.uint8), bitorder="little")[:vocab_size]
    if len(bits) < vocab_size:
        raise ValueError(f"a bitmask of {len(bits)} tokens for {vocab_size}")
    ids = np.flatnonzero(bits)
    return None if len(ids) > MAX_FEW else ids[~np.isin(ids, row.banned)]


def _sample_few(logits_V: Tensor, row: SampleRow, few: npt.NDArray[np.int64]) -> Sampled:
    if len(few) == 1:
        return Sampled(int(few[0]))
    ids = torch.as_tensor(few, device=logits_V.device)
    logits = logits_V[ids]
    if not bool((logits < torch.inf).all()):  # nor NaN
        return Sampled(-1, failure=NOT_FINITE)
    if _has_penalties(row.params) or row.params.logit_bias:
        logits = _adjusted(logits_V, row)[ids]
    token_id = _choose(Candidates(ids, logits.to(torch.float32)), row)
    return Sampled(-1, failure=NO_TOKEN) if token_id is None else Sampled(token_id)


def _sample_row(logits_V: Tensor, row: SampleRow, best_id: int) -> Sampled:
    """The raw logits are free of NaN and +inf."""
    if _is_plain_greedy(row.params) and _is_allowed(best_id, row):
        token_id = best_id if logits_V[best_id] > -torch.inf else None
    else:
        token_id = _choose(Candidates.of(_adjusted(logits_V, row)), row)
    if token_id is None:
        return Sampled(-1, failure=NO_TOKEN)
    if row.num_top is None:
        return Sampled(token_id)
    logprob, top = row_logprobs(logits_V, token_id, row.num_top)
    return Sampled(token_id, logprob, top)


def _is_plain_greedy(params: SamplingParams) -> bool:
    return params.temperature == 0 and not _has_penalties(params) and not params.logit_bias


def _has_penalties(params: SamplingParams) -> bool:
    return (
        params.repetition_penalty != 1
        or params.frequency_penalty != 0
        or params.presence_penalty != 0
    )


def _is_allowed(token_id: int, row: SampleRow) -> bool:
    if token_id in row.banned:
        return False
    if row.bitmask is None:
        return True
    return bool(row.bitmask[token_id // 32] >> (token_id % 32) & 1)


def _adjusted(logits_V: Tensor, row: SampleRow) -> Tensor:
    """A float32 copy with penalties and bias applied and forbidden tokens at -inf."""
    adjusted = logits_V.to(torch.float32, copy=True)
    if _has_penalties(row.params):
        _apply_penalties(adjusted, row)
    if row.params.logit_bias:
        bias = row.params.logit_bias
        ids = torch.tensor(list(bias), device=adjusted.device)
        adjusted[ids] += torch.tensor(list(bias.values()), device=adjusted.device)
    adjusted.clamp_(max=_MAX_LOGIT)  # a tiny repetition penalty may have made it infinite
    if row.banned:
        adjusted[torch.tensor(row.banned, device=adjusted.device)] = -torch.inf
    if row.bitmask is not None:
        apply_bitmask(adjusted, torch.as_tensor(row.bitmask).to(adjusted.device))
    return adjusted


def _apply_penalties(logits_V: Tensor, row: SampleRow) -> None:
    """Repetition over prompt and output (positive logits shrink, negative ones grow);
    frequency for each occurrence in the output, presence once."""
    params = row.params
    assert row.prompt_ids is not None and row.output_ids is not None, "penalties need the ids"
    if params.repetition_penalty != 1:
        seen = np.unique(np.concatenate((row.prompt_ids, row.output_ids))).astype(np.int64)
        ids = torch.as_tensor(seen).to(logits_V.device)
        values = logits_V[ids]
        penalty = params.repetition_penalty
        logits_V[ids] = torch.where(values > 0, values / penalty, values * penalty)
    if params.frequency_penalty != 0 or params.presence_penalty != 0:
        present, counts = np.unique(row.output_ids, return_counts=True)
        ids = torch.as_tensor(present.astype(np.int64)).to(logits_V.device)
        repeats = torch.as_tensor(counts.astype(np.float32)).to(logits_V.device)
        logits_V[ids] -= params.frequency_penalty * repeats + params.presence_penalty


def _choose(kept: Candidates, row: SampleRow) -> int | None:
    """The token, or None where every logit is -inf."""
    if not len(kept.ids):
        return None
    params = row.params
    best = kept.scores.argmax()
    if kept.scores[best] == -torch.inf:
        return None
    if params.temperature == 0:
        return int(kept.ids[best])
    if row.bitmask is not None:  # often only a few tokens are left
        kept = kept.where(kept.scores > -torch.inf)
    if params.top_k != -1:
        kept = keep_top_k(kept, params.top_k)
    kept = kept.tempered(params.temperature)
    if params.top_p < 1:
        kept = keep_top_p(kept, params.top_p)
    if params.min_p > 0:
        kept = keep_min_p(kept, params.min_p)
    noise = gumbel_noise(row.seed, row.choice, row.position, kept.ids)
    return int(kept.ids[(kept.scores + noise).argmax()])
