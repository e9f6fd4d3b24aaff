"""Text that a grammar forces, as the tokens that it is read as; knows no requests.

    ... k k k | forced bytes                     k: the last output tokens, as left context
    encode(k k k + forced)  =  k k k | f f f f   else: no jump, nothing written is respelled
                                       f f       without the end that a later token may span

The ids are those of `encode(the whole text)`, whatever follows: what is cut off at the end is
where a token that the grammar allows begins in the forced bytes and goes on behind them.
"""

from __future__ import annotations

import codecs
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from .guide import Guide
from .token_masks import Bitmask, has_bit
from .walk import TooManyThreads

_CONTEXT = 3
"""Output tokens that the forced text is read together with."""
MAX_CONTEXT = 8
"""The same where a character is made of several; more are never looked at."""
_WINDOW_BYTES, _WINDOW_TOKENS = 7, 4
"""How far before its end a token may begin that spans the end of the forced text."""
_MAX_KEPT_TEXT = 256
"""Characters of the longest text whose ids are remembered."""

_UTF8 = codecs.getincrementaldecoder("utf-8")


@dataclass(frozen=True, slots=True)
class _Spanning:
    """What comes behind some bytes in the tokens that begin with them and are longer.

    ids: tokens that are such a rest by themselves. others: rests that no token is.
    """

    ids: npt.NDArray[np.int64]
    others: tuple[bytes, ...]


class Jumper:
    """Over one vocabulary; for one thread."""

    def __init__(
        self,
        encode: Callable[[str], list[int]],
        token_bytes: Sequence[bytes],
        *,
        control_ids: Collection[int],
        vocab_width: int,
    ) -> None:
        """encode: of text in which nothing is a control token. vocab_width: of the logits."""
        self._encode = encode
        self._token_bytes = token_bytes
        self._control_ids = frozenset(control_ids)
        texts = ((t, i) for i, t in enumerate(token_bytes) if t and i not in self._control_ids)
        self._sorted = sorted(texts)
        self._ids = {text: token_id for text, token_id in reversed(self._sorted)}
        self._max_bytes = max(map(len, self._ids), default=0)
        self._row: Bitmask = np.zeros(-(-vocab_width // 32), dtype=np.int32)
        self._kept = lru_cache(maxsize=4096)(self._canonical)
        self._spanning = lru_cache(maxsize=1024)(self._find_spanning)

    def run(self, guide: Guide, outputs: Sequence[int], left: int) -> list[int]:
        """The tokens that come next for certain after these (last) output tokens; often none.

        left: tokens that may still be generated, the stop token included. `guide` stays where
        it is, and will accept them.
        """
        if left <= 0 or guide.is_terminated:
            return []
        found = self._forced(guide, outputs)[:left]
        if not found and not guide.is_completed:
            return []
        ahead = guide.fork()
        try:
            for count, token_id in enumerate(found):
                # Near the limit only a token may come after which an ending fits.
                if not ahead.fits(left - count) or not ahead.accept(token_id):
                    return []
            return self._ended(found, ahead, left - len(found))
        except TooManyThreads:
            return []

    def _forced(self, guide: Guide, outputs: Sequence[int]) -> list[int]:
        """The forced bytes, as far as they are whole characters, as tokens."""
        forced = guide.forced()
        context = self._context(outputs) if forced else None
        if context is None:
            return []
        before = b"".join(self._token_bytes[token_id] for token_id in context)
        try:
            text = _UTF8().decode(before + forced)
        except UnicodeDecodeError:
            return []
        ids = self._kept(text) if len(text) <= _MAX_KEPT_TEXT else self._canonical(text)
        return ids[len(context) :] if ids[: len(context)] == context else []

    def _canonical(self, text: str) -> list[int]:
        """None for a text that does not come back from its ids as it was."""
        ids = self._encode(text)
        is_lossless = b"".join(self._token_bytes[token_id] for token_id in ids) == text.encode()
        return ids if is_lossless and self._control_ids.isdisjoint(ids) else []

    def _context(self, outputs: Sequence[int]) -> list[int] | None:
        """The last outputs, as many as are whole characters; None if there are none such."""
        most = min(MAX_CONTEXT, len(outputs))
        for count in range(min(_CONTEXT, most), most + 1):
            ids = [int(token_id) for token_id in outputs[len(outputs) - count :]]
            if not self._control_ids.isdisjoint(ids):
                return None
            try:
                b"".join(self._token_bytes[token_id] for token_id in ids).decode()
            except UnicodeDecodeError:
                continue
            return ids
        return None

    def _ended(self, found: list[int], ahead: Guide, left: int) -> list[int]:
        """Up to where it is certain which tokens come; and the stop token, if nothing else can."""
        row = self._row
        if left <= 0:
            return found
        if not ahead.fill(row, left):
            return []
        if ahead.is_completed:
            allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
            if len(allowed) == 1:
                return [*found, int(allowed[0])]
        if not found:
            return []
        data = b"".join(self._token_bytes[token_id] for token_id in found)
        ends = list(accumulate(len(self._token_bytes[token_id]) for token_id in found))
        for start in self._window(ends):
            if self._may_come(self._spanning(data[start:]), row, ahead):
                return [i for i, end in zip(found, ends, strict=True) if end <= start]
        return found

    def _window(self, ends: Sequence[int]) -> range:
        """Where a token may begin that spans the end."""
        length = ends[-1]
        tokens_ago = ends[-_WINDOW_TOKENS - 1] if len(ends) > _WINDOW_TOKENS else 0
        first = max(0, min(length - _WINDOW_BYTES, tokens_ago), length - self._max_bytes + 1)
        return range(first, length)

    def _may_come(self, spanning: _Spanning, row: Bitmask, ahead: Guide) -> bool:
        words = row.view(np.uint32)[spanning.ids // 32]
        if (words >> (spanning.ids % 32).astype(np.uint32) & 1).any():
            return True
        return any(self._accepts(rest, row, ahead) for rest in spanning.others)

    def _accepts(self, rest: bytes, row: Bitmask, ahead: Guide) -> bool:
        """Bytes that are no token: as the tokens that they can be made of."""
        token_ids = list(self._pieces(rest))
        if not token_ids or not has_bit(row, token_ids[0]):
            return False
        guide = ahead.fork()
        return all(map(guide.accept, token_ids))

    def _pieces(self, text: bytes) -> Iterator[int]:
        """One token for each byte; none at all if there is no such token for one of them."""
        ids = [self._ids.get(text[i : i + 1]) for i in range(len(text))]
        return iter([] if None in ids else [i for i in ids if i is not None])

    def _find_spanning(self, begin: bytes) -> _Spanning:
        ids: list[int] = []
        others: list[bytes] = []
        first = bisect_left(self._sorted, (begin, 0))
        for index in range(first, len(self._sorted)):
            text, _ = self._sorted[index]
            if not text.startswith(begin):
                break
            if rest := text[len(begin) :]:
                token_id = self._ids.get(rest)
                if token_id is None:
                    others.append(rest)
                else:
                    ids.append(token_id)
        return _Spanning(np.array(ids, dtype=np.int64), tuple(others))
