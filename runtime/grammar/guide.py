"""Where one request stands in its constraint: the engine's matcher, and what engines don't do.

Endings that fit the budget, and keys that do not repeat. Knows no requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..messages import EngineName
from .closing import Closer, Closing
from .engine import EngineGrammar, Matcher
from .keys import Keys, QuotingTokens
from .token_masks import Bitmask


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """One compiled constraint, shared by all requests that use it.

    engine_name, notes, is_whole, min_tokens: as in `Artefact`. quoting: None where keys can't
    repeat. num_bytes: what it takes of this process's memory, about.
    """

    engine_name: EngineName
    engine: EngineGrammar
    token_bytes: Sequence[bytes]
    closer: Closer | None = None
    quoting: QuotingTokens | None = None
    notes: tuple[str, ...] = ()
    is_whole: bool = True
    min_tokens: int = 0
    num_bytes: int = 0

    def guide(self) -> Guide:
        """A new one, at the start."""
        matcher = self.engine.matcher()
        return Guide(matcher, self.token_bytes, self.closer, self.quoting)


class Guide:
    """One request's. Not thread-safe."""

    def __init__(
        self,
        matcher: Matcher,
        token_bytes: Sequence[bytes],
        closer: Closer | None,
        quoting: QuotingTokens | None,
    ) -> None:
        """closer: None where the text may be cut off. quoting: None where keys can't repeat."""
        self._matcher = matcher
        self._token_bytes = token_bytes
        self._closing = None if closer is None else Closing(closer)
        self._quoting = quoting
        self._keys = Keys()

    @property
    def is_completed(self) -> bool:
        """The text so far is whole: a stop token would be accepted now, or was."""
        return self._matcher.is_completed

    @property
    def is_terminated(self) -> bool:
        """A stop token was accepted: nothing can follow."""
        return self._matcher.is_terminated

    def accept(self, token_id: int) -> bool:
        """Advance by one token; False where the constraint forbids it."""
        if not self._matcher.accept(token_id):
            return False
        if self.is_terminated:
            return True
        if self._quoting is not None:
            self._keys.advance(self._token_bytes[token_id])
        if self._closing is not None:
            self._closing.taken.append(token_id)
        return not self._keys.has_repeated

    def fill(self, row: Bitmask, left: int) -> bool:
        """Set the bits of the tokens that may come, clear all others; False if none may.

        left: tokens that may still be generated, this one and the stop token among them.
        """
        if not self._matcher.fill(row):
            return False
        if self._quoting is not None:
            self._bar_repeated(self._quoting, row)
        if self._closing is not None:
            self._closing.restrict(row, left)
        return bool(row.any())

    def _bar_repeated(self, quoting: QuotingTokens, row: Bitmask) -> None:
        num_quotes = self._keys.quotes_to_repeat
        if num_quotes is None:
            return
        for token_id in quoting.among(row, num_quotes):
            keys = self._keys.copy()
            keys.advance(self._token_bytes[token_id])
            if keys.has_repeated:
                row.view(np.uint32)[token_id // 32] &= ~np.uint32(1 << token_id % 32)
