"""Where one request stands in its constraint: the engine's matcher, and what engines don't do.

Endings that fit the budget, and keys that do not repeat. Knows no requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..messages import EngineName
from .closing import Closer, Closing, Ending
from .engine import EngineGrammar, Matcher
from .keys import Keys, KeyTokens
from .mask_cache import MaskCache
from .token_masks import Bitmask
from .walk import TooManyThreads

_KEYS_OF_A_TOKEN = 2
_MAX_FOLLOWED = 64
"""Threads of a place; to follow more at each token takes longer than to ask an engine."""


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """One compiled constraint, shared by all requests that use it.

    engine_name, notes, is_whole, min_tokens: as in `Artefact`. key_tokens: None where keys can't
    repeat. num_bytes: what it takes of this process's memory, about; without its masks in
    `mask_cache`, which is shared.
    """

    engine_name: EngineName
    engine: EngineGrammar
    token_bytes: Sequence[bytes]
    closer: Closer | None = None
    key_tokens: KeyTokens | None = None
    notes: tuple[str, ...] = ()
    is_whole: bool = True
    min_tokens: int = 0
    num_bytes: int = 0
    mask_cache: MaskCache = field(default_factory=MaskCache)

    def guide(self) -> Guide:
        """A new one, at the start."""
        matcher = self.engine.matcher()
        return Guide(matcher, self.token_bytes, self.closer, self.key_tokens, self.mask_cache)


class Guide:
    """One request's. Not thread-safe."""

    def __init__(
        self,
        matcher: Matcher,
        token_bytes: Sequence[bytes],
        closer: Closer | None,
        key_tokens: KeyTokens | None,
        mask_cache: MaskCache,
    ) -> None:
        """closer: None where the text may be cut off. key_tokens: None where keys can't repeat.

        `matcher` is for who fills the masks of many; it goes on by `accept` alone.
        """
        self.matcher = matcher
        self._token_bytes = token_bytes
        self._closing = None if closer is None else Closing(closer)
        self._key_tokens = key_tokens
        self._keys = Keys()
        self._filled: tuple[int, Bitmask] | None = None  # the last mask here, never written to
        self._mask_cache = mask_cache
        self._is_lost = False  # too ambiguous to say at which place it is
        # What engines let follow this half of a character may depend on how it came.
        self._is_mid_character = False

    def fork(self) -> Guide:
        """Another one at the same place; the two go on separately."""
        other = Guide(
            self.matcher.fork(), self._token_bytes, None, self._key_tokens, self._mask_cache
        )
        other._closing = None if self._closing is None else self._closing.copy()
        other._keys = self._keys.copy()
        other._filled = self._filled
        other._is_lost = self._is_lost
        other._is_mid_character = self._is_mid_character
        return other

    @property
    def is_completed(self) -> bool:
        """The text so far is whole: a stop token would be accepted now, or was."""
        return self.matcher.is_completed

    @property
    def is_terminated(self) -> bool:
        """A stop token was accepted: nothing can follow."""
        return self.matcher.is_terminated

    def accept(self, token_id: int) -> bool:
        """Advance by one token; False where the constraint forbids it."""
        if not self.matcher.accept(token_id):
            return False
        self._filled = None
        if self.is_terminated:
            return True
        if self._key_tokens is not None:
            self._keys.advance(self._token_bytes[token_id])
        if self._closing is not None:
            self._closing.take(token_id)
            self._is_mid_character = self._token_bytes[token_id].endswith(b"\xed")
        return not self._keys.has_repeated

    def fill(self, row: Bitmask, left: int) -> bool:
        """Set the bits of the tokens that may come, clear all others; False if none may.

        left: tokens that may still be generated, this one and the stop token among them. Asked
        again at the same place it costs nothing.
        """
        known = self.known_mask(left)
        if known is None:
            self.matcher.fill(row)
            known = row.copy()
            self.take_mask(known, left)
        row[:] = known
        return bool(row.any())

    def known_mask(self, left: int) -> Bitmask | None:
        """What `fill` gives, if the engine need not be asked. Not to be written to."""
        if self._filled is not None and self._filled[0] == left:
            return self._filled[1]
        place = self.place()
        if place is None or place.mask is None:
            return None
        mask = place.mask
        if self._key_tokens is not None or not self.fits(left):
            mask = mask.copy()
            self._narrow(mask, left)
        self._filled = left, mask
        return mask

    def take_mask(self, row: Bitmask, left: int) -> None:
        """`matcher` has filled `row`: make it what `fill` gives. It is kept, not copied."""
        place = self.place()
        if place is not None and row.any():
            self._mask_cache.put(place, row.copy())
        self._narrow(row, left)
        self._filled = left, row

    def place(self) -> Ending | None:
        """In the grammar, if it says what the engine allows."""
        if self._closing is None or self._is_lost or self._is_mid_character:
            return None
        try:
            place = self._closing.place()
            self._is_lost = len(place.threads) > _MAX_FOLLOWED
        except TooManyThreads:
            self._is_lost = True
        return None if self._is_lost else self._closing.ending

    def _narrow(self, row: Bitmask, left: int) -> None:
        """Bar what repeats a key, and what leaves no room for an ending."""
        try:
            is_far = self.fits(left)
        except TooManyThreads:  # no ending is known, and none may come
            row[:] = 0
            return
        if self._key_tokens is not None:
            self._bar_repeated(self._key_tokens, row, left, is_far=is_far)
        if self._closing is not None and not is_far:
            keys = None if self._key_tokens is None else self._keys
            self._closing.closer.restrict(self._closing.ending, row, left, keys)

    def has_room(self, left: int) -> bool:
        """An ending is known that fits into `left` tokens, the stop token included. Raises
        `TooManyThreads`."""
        if self._closing is None or self.fits(left):
            return True
        closer, ending = self._closing.closer, self._closing.ending
        if self._key_tokens is None:
            return ending.cost + 1 <= left
        tokens = closer.tokens_without_repeats(ending, self._keys)
        return tokens is not None and len(tokens) + 1 <= left

    def forced(self) -> bytes:
        """What the text goes on with, whatever the model says; see `Matcher.forced`."""
        return self.matcher.forced()

    def fits(self, left: int) -> bool:
        """No token is barred because only `left` may still be generated.

        A key that must not repeat may have to be longer than the shortest one by a token for
        each that is there, or that comes with the next token.
        """
        if self._closing is None:
            return True
        spare = 0
        if self._key_tokens is not None:
            spare = self._keys.num_open + len(self._keys.open) + _KEYS_OF_A_TOKEN
        return self._closing.is_far(left - spare)

    def _bar_repeated(
        self, key_tokens: KeyTokens, row: Bitmask, left: int, *, is_far: bool
    ) -> None:
        """Tokens by which a key repeats; or has to, near the limit: nothing else fits."""
        num_quotes = self._keys.quotes_to_repeat
        if num_quotes is None:
            return
        bits = row.view(np.uint32)
        if is_far:
            token_ids = key_tokens.among(row, num_quotes)
        else:
            token_ids = np.append(key_tokens.at(self._keys), list(self._towards_keys()))
            token_ids = token_ids.astype(np.int64)
            are_allowed = bits[token_ids // 32] >> (token_ids % 32).astype(np.uint32) & 1
            token_ids = token_ids[are_allowed != 0]
        for token_id in token_ids.tolist():
            if not self._can_differ(token_id, left, is_far=is_far):
                bits[token_id // 32] &= ~np.uint32(1 << token_id % 32)

    def _towards_keys(self) -> Iterator[int]:
        """Tokens in a key after which it may still become one that is there."""
        if self._closing is not None and self._keys.string is not None:
            for rest in self._keys.barred():
                for end in range(1, len(rest) + 1):
                    token_id = self._closing.closer.token(rest[:end])
                    if token_id is not None:
                        yield token_id

    def _can_differ(self, token_id: int, left: int, *, is_far: bool) -> bool:
        keys = self._keys.copy()
        keys.advance(self._token_bytes[token_id])
        if keys.has_repeated:
            return False
        if self._closing is None or is_far or not keys.barred():
            return True
        closer, ending = self._closing.closer, self._closing.ending
        return closer.cost_after(ending, token_id, self._keys) + 2 <= left
