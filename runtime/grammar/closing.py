"""Ends constrained text within a budget: what the shortest known ending is, and what fits.

Each request keeps its place in the grammar apart from the engine's matcher. Near the limit a
token is only allowed if an ending that fits is known after it. Knows no engine.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from math import inf

import numpy as np
import numpy.typing as npt

from .cfg import Grammar
from .closing_costs import Costs, Spelling
from .closing_growth import max_growth
from .closing_keys import ending_without_repeats
from .keys import KeyPlace, Keys, KeyTokens
from .regular import Regex
from .token_masks import Bitmask
from .walk import Threads, TooManyThreads, Walk

MAX_REMEMBERED = 20_000
"""Ways from one place in a grammar to another, by a token; and as many by a byte."""

MAX_THREADS_REMEMBERED = 200_000
"""Of all places in one grammar together: an ambiguous one has up to 2,000 a place."""

MAX_PLACES = 200
"""Places of which it is remembered what each token that was tried there costs."""

MAX_TRIED = 64
"""Tokens that are tried one by one near the limit, of those that do more than go on with a text."""

_IN_STRINGS = frozenset(range(0x20, 0x80)) - frozenset(b'"\\')  # bytes; longer characters aside

MAX_COST_TRIED = 1_000
"""Tokens of an ending beyond which none are tried: each may take as long to say as it is."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class Ending:
    """A place in a grammar; `cost`: the tokens of the shortest known ending, 0 if it is whole.

    most: the same of that derivation whose ending is the longest: the next token may be one that
    only this derivation has. mask: what the engine allows here, where that is remembered; set by
    `MaskCache` alone. Compared by identity: a closer has one for each place.
    """

    threads: Threads
    is_whole: bool
    cost: float
    most: float
    mask: Bitmask | None = None


class Closer:
    """The endings of one grammar over one vocabulary; for one thread, shared by its requests."""

    def __init__(
        self, grammar: Grammar, vocabulary: ClosingVocabulary, growth: float | None = None
    ) -> None:
        """growth: `growth` of another closer of this grammar, which takes time to find."""
        self._vocabulary = vocabulary
        self._walk = Walk(grammar)
        self._costs = Costs(self._walk.root, vocabulary.spelling.cost)
        if growth is None:
            growth = max_growth(self._walk.root, self._costs, vocabulary.spelling)
        self.growth = growth
        self._endings: dict[tuple[Threads, bool], Ending] = {}
        self._after: dict[Ending, dict[int, Ending]] = {}
        self._num_ways = 0
        self._num_threads = 0
        self._texts: dict[Ending, bytes] = {}
        self._known: dict[tuple[Ending, KeyPlace | None], dict[int, float]] = {}
        self._same: dict[Regex, frozenset[int]] = {}
        self.start = self._ending(*self._walk.start())

    @property
    def min_tokens(self) -> int:
        """A budget that is enough, the stop token included."""
        return int(self.start.cost) + 1

    def after(self, ending: Ending, token_id: int) -> Ending:
        """After a token that the grammar allows. Raises `TooManyThreads`."""
        ways = self._after.get(ending)
        if ways is None:
            ways = self._after[ending] = {}
        found = ways.get(token_id)
        if found is None:
            if (
                max(self._num_ways, self._walk.num_moves) >= MAX_REMEMBERED
                or self._num_threads >= MAX_THREADS_REMEMBERED
            ):
                self._forget()
            threads, is_whole = ending.threads, ending.is_whole
            for byte in self._vocabulary.token_bytes[token_id]:
                threads, is_whole = self._walk.step(threads, byte)
            found = ways[token_id] = self._ending(threads, is_whole)
            self._num_ways += 1
        return found

    def tokens(self, ending: Ending) -> Iterator[int]:
        """Of the shortest known ending, without the stop token."""
        yield from self._spelled(self._shortest(ending))

    def tokens_without_repeats(self, ending: Ending, keys: Keys) -> list[int] | None:
        """The same of an ending by which no key repeats; None if none is known."""
        if ending.is_whole:
            return []
        threads = (thread for thread in ending.threads if self._costs.of_thread(thread) < inf)
        for thread in sorted(threads, key=self._costs.of_thread):
            texts = ending_without_repeats(self._costs, thread, keys)
            if texts is not None:
                return list(self._spelled(texts))
        return None

    def cost_after(self, ending: Ending, token_id: int, keys: Keys | None) -> float:
        """Of the shortest known ending after a token; keys: those that must not repeat."""
        costs = self._known_costs(ending, keys)
        cost = costs.get(token_id)
        if cost is None:
            cost = costs[token_id] = self._find_cost_after(ending, token_id, keys)
        return cost

    def _find_cost_after(self, ending: Ending, token_id: int, keys: Keys | None) -> float:
        try:
            after = self.after(ending, token_id)
        except TooManyThreads:
            return inf
        if keys is None:
            return after.cost
        moved = keys.copy()
        moved.advance(self._vocabulary.token_bytes[token_id])
        if moved.has_repeated or after.cost == inf:
            return inf
        if not self._repeats(after, moved):
            return after.cost
        tokens = self.tokens_without_repeats(after, moved)
        return inf if tokens is None else len(tokens)

    def _repeats(self, ending: Ending, keys: Keys) -> bool:
        """A key would, in the shortest known ending."""
        text = self._texts.get(ending)
        if text is None:
            text = self._texts[ending] = b"".join(self._shortest(ending))
        if b":" not in text:  # no key ends
            return False
        moved = keys.copy()
        moved.advance(text)
        return moved.has_repeated

    def token(self, text: bytes) -> int | None:
        """The one token that is this text, if there is one."""
        return self._vocabulary.spelling.token(text)

    def _shortest(self, ending: Ending) -> Iterator[bytes]:
        """The texts of the shortest known ending."""
        if ending.is_whole:
            return iter(())
        return self._costs.ending(min(ending.threads, key=self._costs.of_thread))

    def _spelled(self, texts: Iterable[bytes]) -> Iterator[int]:
        for text in texts:
            yield from self._vocabulary.spelling.tokens(text)

    def restrict(self, ending: Ending, row: Bitmask, left: int, keys: Keys | None = None) -> None:
        """Clear the bits of `row` after which no ending is known that fits into `left` tokens.

        left: counts the token that is chosen now, and the stop token. keys: those that must not
        repeat. The next token of the known ending stays, so that not all bits are cleared where
        that ending itself fits.
        """
        vocabulary = self._vocabulary
        allowed = _unpacked(row)
        kept = np.zeros_like(allowed)
        kept[vocabulary.stop_ids] = allowed[vocabulary.stop_ids]
        cost, next_ids = ending.cost, list(islice(self.tokens(ending), 1))
        if keys is not None:
            known = self.tokens_without_repeats(ending, keys) or []
            cost, next_ids = max(len(known), cost), known[:1]
        if cost + 2 <= left:
            kept |= allowed & self._going_on(ending, len(allowed))
        most = MAX_TRIED if ending.cost <= MAX_COST_TRIED else 0
        tried = np.flatnonzero(allowed & ~kept)[:most]
        for token_id in [*next_ids, *tried.tolist()]:
            if allowed[token_id] and not kept[token_id]:
                kept[token_id] = self.cost_after(ending, token_id, keys) + 2 <= left
        row[:] = np.packbits(kept, bitorder="little").view("<i4")

    def _known_costs(self, ending: Ending, keys: Keys | None) -> dict[int, float]:
        """What `cost_after` has found there, by token; to be added to."""
        place = ending, None if keys is None else keys.place
        costs = self._known.get(place)
        if costs is None:
            if len(self._known) >= MAX_PLACES:
                self._known.clear()
            costs = self._known[place] = {}
        return costs

    def _forget(self) -> None:
        """Endings that requests hold stay good: they know all that they need."""
        self._endings.clear()
        self._after.clear()
        self._num_ways = 0
        self._num_threads = 0
        self._texts.clear()
        self._known.clear()
        self._same.clear()
        self._walk.forget()
        self._costs.forget()

    def _going_on(self, ending: Ending, width: int) -> npt.NDArray[np.bool_]:
        """Tokens that leave the place in the grammar as it is: more of the same text."""
        if len(ending.threads) != 1:
            return np.zeros(width, dtype=np.bool_)
        ((terminal, _),) = ending.threads
        if isinstance(terminal, bytes):
            return np.zeros(width, dtype=np.bool_)
        found = self._same.get(terminal)
        if found is None:
            of = self._walk.derivatives.of
            found = frozenset(byte for byte in range(256) if of(terminal, byte) is terminal)
            self._same[terminal] = found
        return self._vocabulary.made_of(found, width)

    def _ending(self, threads: Threads, is_whole: bool) -> Ending:
        found = self._endings.get((threads, is_whole))
        if found is None:
            costs = [cost for cost in map(self._costs.of_thread, threads) if cost < inf]
            least = 0 if is_whole else min(costs, default=inf)
            found = Ending(threads, is_whole, least, max(costs, default=0))
            self._endings[threads, is_whole] = found
            self._num_threads += len(threads)
        return found


class Closing:
    """One request's place in its grammar, followed no further than its budget asks for.

    Each accepted token that is not followed yet lengthens the shortest ending by the grammar's
    growth at the most, so far from the limit none has to be followed.
    """

    def __init__(self, closer: Closer) -> None:
        self.closer = closer
        self.ending = closer.start
        self._taken: deque[int] = deque()

    def copy(self) -> Closing:
        other = Closing(self.closer)
        other.ending, other._taken = self.ending, self._taken.copy()
        return other

    def take(self, token_id: int) -> None:
        """A token that was accepted."""
        self._taken.append(token_id)

    def place(self) -> Ending:
        """The present one. Raises `TooManyThreads`."""
        while self._taken:
            self.ending = self.closer.after(self.ending, self._taken[0])
            self._taken.popleft()
        return self.ending

    def is_far(self, left: int) -> bool:
        """Any allowed token can be taken when `left` tokens are left, it and the stop token
        included. If not, `ending` is the present place. Raises `TooManyThreads`."""
        closer = self.closer
        while self.ending.most + closer.growth * (len(self._taken) + 1) + 2 > left:
            if not self._taken:
                return False
            self.ending = closer.after(self.ending, self._taken[0])
            self._taken.popleft()
        return True


class ClosingVocabulary:
    """Tokens as the closer sees them."""

    def __init__(
        self, token_bytes: Sequence[bytes], *, control_ids: Sequence[int], stop_ids: Sequence[int]
    ) -> None:
        barred = {*control_ids, *stop_ids}
        self.token_bytes = token_bytes
        self.stop_ids = np.array(sorted(stop_ids), dtype=np.int64)
        allowed = [token_id not in barred for token_id in range(len(token_bytes))]
        self.spelling = Spelling(token_bytes, allowed)
        self.key_tokens = KeyTokens(token_bytes, allowed)
        self._texts = [t if ok else b"" for t, ok in zip(token_bytes, allowed, strict=True)]
        self._made_of = lru_cache(maxsize=64)(self._find_made_of)

    def warm_up(self, width: int) -> None:
        """Find what takes longest and is needed first: the tokens inside any string."""
        self.made_of(_IN_STRINGS, width)

    def made_of(self, symbols: frozenset[int], width: int) -> npt.NDArray[np.bool_]:
        """Which tokens have no other bytes than these. Not to be written to."""
        return self._made_of(symbols, width)

    def _find_made_of(self, symbols: frozenset[int], width: int) -> npt.NDArray[np.bool_]:
        found = np.zeros(width, dtype=np.bool_)
        if symbols:
            letters = b"".join(b"\\x%02x" % symbol for symbol in sorted(symbols))
            pattern = re.compile(b"[" + letters + b"]+", re.DOTALL)
            found[: len(self._texts)] = [
                pattern.fullmatch(text) is not None for text in self._texts
            ]
        return found


def _unpacked(row: Bitmask) -> npt.NDArray[np.bool_]:
    return np.unpackbits(row.view(np.uint8), bitorder="little").astype(np.bool_)
