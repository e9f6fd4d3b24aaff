"""top_k, top_p and min_p over one row's candidates; knows neither logits nor requests.

Tokens of equal score stand or fall together, so no result depends on how a sort or a top-k
orders its ties: top_k keeps every token as likely as the k-th, top_p every token as likely
as the last one that it needs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# top_p looks at so many of the most likely tokens first, then at this many times more.
_FIRST_LOOK = 256
_GROWTH = 16


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens that may still be sampled, ids ascending. A score of -inf can never win."""

    ids: Tensor
    scores: Tensor

    @staticmethod
    def of(logits_V: Tensor) -> Candidates:
        """The whole vocabulary, scored by its logits."""
        return Candidates(torch.arange(len(logits_V), device=logits_V.device), logits_V)

    def where(self, keep: Tensor) -> Candidates:
        chosen = keep.nonzero().squeeze(-1)
        return Candidates(self.ids[chosen], self.scores[chosen])

    def tempered(self, temperature: float) -> Candidates:
        """Scores divided by the temperature, in float64, shifted so that the largest is 0.

        Float64 keeps the scores finite at any temperature above 0, and makes sums over the
        vocabulary exact enough to compare with top_p. At least one score must be finite.
        """
        scores = self.scores.to(torch.float64, copy=True)
        return Candidates(self.ids, scores.sub_(scores.max()).div_(temperature))


def keep_top_k(candidates: Candidates, k: int) -> Candidates:
    """The k most likely tokens, and those exactly as likely as the k-th.

    Temperature does not change the order, so this may go before it.
    """
    if k >= len(candidates.ids):
        return candidates
    threshold = candidates.scores.topk(k).values[-1]
    return candidates.where(candidates.scores >= threshold)


def keep_top_p(candidates: Candidates, top_p: float) -> Candidates:
    """The fewest most likely tokens whose probabilities add up to at least `top_p`; tempered.

    Probabilities are those among the candidates. Tokens exactly as likely as the last one
    stay too.
    """
    scores = candidates.scores
    total = float(scores.exp().sum())
    look = _FIRST_LOOK
    while look < len(scores):
        threshold = _nucleus_threshold(scores.topk(look).values, total, top_p)
        if threshold is not None:
            return candidates.where(scores >= threshold)
        look *= _GROWTH
    threshold = _nucleus_threshold(scores.sort(descending=True).values, total, top_p)
    # Rounding may leave the sum of all just short of a top_p near 1: then all stay.
    return candidates if threshold is None else candidates.where(scores >= threshold)


def _nucleus_threshold(scores: Tensor, total: float, top_p: float) -> float | None:
    """The least score needed for `top_p`, or None if these (descending) don't suffice."""
    reached = (scores.exp().cumsum(0) >= top_p * total).nonzero()
    return float(scores[reached[0, 0]]) if len(reached) else None


def keep_min_p(candidates: Candidates, min_p: float) -> Candidates:
    """The tokens at least `min_p` times as likely as the most likely one; tempered."""
    return candidates.where(candidates.scores >= math.log(min_p))
