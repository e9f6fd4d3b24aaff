"""Random walks through a compiled grammar: mask, pick any allowed token, accept, repeat."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from espalier.runtime.grammar.engine import EngineGrammar, Matcher

CLOSERS = frozenset(b'"}],0e.')


@dataclass(frozen=True, slots=True)
class Walk:
    """The ids taken before the stop token, and whether one was reached."""

    ids: list[int]
    is_finished: bool


def allowed_tokens(matcher: Matcher, width: int) -> npt.NDArray[np.bool_]:
    """For every id up to a word's end, whether the mask allows it."""
    row = np.full((width + 31) // 32, -1, dtype=np.int32)
    has_any = matcher.fill(row)
    allowed = np.unpackbits(row.view(np.uint8), bitorder="little").astype(np.bool_)
    assert has_any == allowed.any()
    return allowed


def allowed_ids(matcher: Matcher, width: int) -> set[int]:
    return {int(token_id) for token_id in np.flatnonzero(allowed_tokens(matcher, width))}


class Walker:
    """Half of the steps prefer tokens that end something, so that most walks finish."""

    def __init__(
        self, token_bytes: Sequence[bytes], stop_ids: Collection[int], width: int, seed: int = 0
    ) -> None:
        self._stop_ids = sorted(stop_ids)
        self._width = width
        self._rng = np.random.default_rng(seed)
        closers = (i for i, text in enumerate(token_bytes) if text and CLOSERS.issuperset(text))
        self._ends = np.array([*closers, *stop_ids])

    def walk(self, grammar: EngineGrammar, max_steps: int = 400) -> Walk:
        """Asserts at each step that mask and `accept` agree, on allowed and forbidden ids."""
        matcher = grammar.matcher()
        ids: list[int] = []
        for _ in range(max_steps):
            allowed = allowed_tokens(matcher, self._width)
            assert allowed.any(), "a dead end"
            assert matcher.is_completed == bool(allowed[self._stop_ids].any())
            for token_id in self._rng.integers(0, len(allowed), 3):
                assert allowed[token_id] or not matcher.accept(int(token_id)), token_id
            token_id = self._pick(allowed)
            assert matcher.accept(token_id), f"token {token_id} is allowed"
            if token_id in self._stop_ids:
                assert matcher.is_terminated and not matcher.accept(token_id)
                return Walk(ids, True)
            assert not matcher.is_terminated
            ids.append(token_id)
        return Walk(ids, False)

    def _pick(self, allowed: npt.NDArray[np.bool_]) -> int:
        ends = self._ends[allowed[self._ends]]
        prefers_end = len(ends) > 0 and self._rng.random() < 0.5
        return int(self._rng.choice(ends if prefers_end else np.flatnonzero(allowed)))
