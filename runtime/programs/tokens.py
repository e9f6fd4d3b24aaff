"""The token ids of one stream: what is settled, and the constants that wait to be tokenised.

Generated ids enter as they are and are never tokenised again, so that every continuation
is found in the radix cache. Constants wait until ids are needed; all that wait are
tokenised together, so that neighbours tokenise canonically whatever statement they came
from.

    items    piece  piece  (ids)  piece  (ids)  piece  piece
             └─────── settled ──────────────┘   └─ pending ─┘
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import chain

from ..messages import FinishReason
from .backend import TextPiece

Item = TextPiece | tuple[int, ...]
Encode = Callable[[Sequence[TextPiece]], Awaitable[list[int]]]


def kept_ids(ids: Sequence[int], num_kept_tokens: int, finish: FinishReason) -> tuple[int, ...]:
    """Which ids of a finished output enter the stream.

    The end token that was matched is left out: the closing marker of the role adds it.
    Where a stop string begins inside a token, the stream keeps the whole tokens before
    that one, so it lacks the last bytes of the variable's text: text is never re-tokenised
    to make up for them.
    """
    limit = len(ids) - 1 if isinstance(finish.matched, int) else len(ids)
    return tuple(ids[: min(num_kept_tokens, limit)])


class TokenState:
    """One stream's tokens; a copy shares the settled runs with its origin.

    `encode` tokenises. Whoever awaits a method awaits it before anything else is done with
    the state; where that fails or is cancelled, the state is as it was.
    """

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._items: list[Item] = []
        self._pending: list[TextPiece] = []
        self._runs: list[tuple[int, ...]] = []

    def copy(self) -> TokenState:
        twin = TokenState(self._encode)
        twin._items = self._items.copy()
        twin._pending = self._pending.copy()
        twin._runs = self._runs.copy()
        return twin

    @property
    def num_items(self) -> int:
        return len(self._items)

    @property
    def pending(self) -> tuple[TextPiece, ...]:
        """The constants that are not tokenised yet."""
        return tuple(self._pending)

    def settled(self) -> list[int]:
        """The ids that stand for good, without the pending constants."""
        return list(chain.from_iterable(self._runs))

    def append_text(self, piece: TextPiece) -> None:
        if piece.text:
            self._items.append(piece)
            self._pending.append(piece)

    async def append_ids(self, ids: tuple[int, ...]) -> None:
        """Settle the pending constants, then append `ids` (none: only settle)."""
        await self._settle()
        self._items.append(ids)
        self._runs.append(ids)

    async def ids(self) -> list[int]:
        """All ids; the pending constants are tokenised now."""
        await self._settle()
        return self.settled()

    def items_since(self, num_items: int) -> tuple[Item, ...]:
        return tuple(self._items[num_items:])

    async def extend(self, items: Iterable[Item]) -> None:
        """Append what another stream appended, in its order; after an error only a part."""
        for item in items:
            if isinstance(item, TextPiece):
                self.append_text(item)
            else:
                await self.append_ids(item)

    async def _settle(self) -> None:
        if self._pending:
            run = tuple(await self._encode(tuple(self._pending)))
            self._runs.append(run)
            self._pending = []
