"""What a grammar engine gives, whichever it is: grammars and matchers."""

from __future__ import annotations

from typing import Protocol, Self

from .token_masks import Bitmask


class Matcher(Protocol):
    """Where one request stands in its grammar. Not thread-safe."""

    @property
    def is_completed(self) -> bool:
        """The text so far is whole: a stop token would be accepted now, or was."""
        ...

    @property
    def is_terminated(self) -> bool:
        """A stop token was accepted: nothing can follow."""
        ...

    def accept(self, token_id: int) -> bool:
        """Advance by one token; False, and no change, where the grammar forbids it."""
        ...

    def fill(self, row: Bitmask) -> bool:
        """Set the bits of the tokens that `accept` would take, clear all others.

        `row` has ceil(vocab_width / 32) words. False if no token at all is allowed. Must not
        be called on a terminated matcher.
        """
        ...

    def forced(self) -> bytes:
        """What every text that the grammar allows goes on with from here; b"" if that is not
        certain, or the text may end here. It may stop within a character."""
        ...

    def fork(self) -> Self:
        """Another matcher at the same place; the two go on separately."""
        ...


class EngineGrammar(Protocol):
    """One grammar as its engine holds it, shared by all requests that use it."""

    @property
    def num_bytes(self) -> int:
        """What it takes of this process's memory, about."""
        ...

    def matcher(self) -> Matcher:
        """A new matcher at the start of the grammar."""
        ...
