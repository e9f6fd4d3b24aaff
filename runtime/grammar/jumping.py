"""Text that a grammar forces, as the tokens that it is read as; knows no requests.

    ... k k t | forced bytes                     k: output tokens, as left context; t: the last
    encode(k k t + forced)  =  k k t | f f f f   a jump
                               k k | T f f f f   a jump that respells t, if nobody has seen it yet
                               x x x | f f f f   none: what is written stays as it is
                                       f f       without the end that a later token may span

The ids are those of `encode(the whole text)`, whatever follows: what is cut off at the end is
where a token that the grammar allows begins in the forced bytes and goes on behind them.
"""

from __future__ import annotations

import codecs
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
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
    """Tokens that begin with some bytes and are longer, and what comes behind those in each.

    rest_ids: what that is as a token, -1 where it is none.
    """

    ids: npt.NDArray[np.int64]
    rest_ids: npt.NDArray[np.int64]
    rests: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Jump:
    """Tokens that come next for certain.

    With `respells`, ids[0] stands in place of the last output token: its text is that token's
    and some more. accepted: what a guide that has accepted the outputs accepts in their stead;
    ahead: one that has, if there is one. before: some text to the left of the ids.
    """

    ids: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()
    respells: bool = False
    before: bytes = b""
    ahead: Guide | None = None


NO_JUMP = Jump()


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

    def run(
        self, guide: Guide, outputs: Sequence[int], left: int, *, may_respell: bool = False
    ) -> Jump:
        """What comes next for certain after these (last) output tokens; often nothing.

        left: tokens that may still be generated, the stop token included. may_respell: the
        last output token, too, may become another one. `guide` stays where it is.
        """
        if left <= 0 or guide.is_terminated:
            return NO_JUMP
        found = self._forced(guide, outputs, may_respell=may_respell, left=left)
        if not found.ids and not guide.is_completed:
            return NO_JUMP
        ahead = guide.fork() if found.ids else guide
        left -= len(found.ids) - found.respells
        try:
            # Near the limit the ending may be spelled in fewer tokens than the text is read as.
            if all(map(ahead.accept, found.accepted)) and ahead.has_room(left):
                return self._ended(found, ahead, left)
        except TooManyThreads:
            pass
        return NO_JUMP

    def _forced(
        self, guide: Guide, outputs: Sequence[int], *, may_respell: bool, left: int
    ) -> Jump:
        """The forced bytes, as far as they are whole characters, as tokens; no more than fit."""
        forced = guide.forced()
        context = self._context(outputs) if forced else None
        if context is None:
            return NO_JUMP
        before = self._bytes_of(context)
        try:
            text = _UTF8().decode(before + forced)
        except UnicodeDecodeError:
            return NO_JUMP
        ids = self._kept(text) if len(text) <= _MAX_KEPT_TEXT else self._canonical(text)
        num = len(context)
        if ids[:num] == context:
            new = tuple(ids[num : num + left])
            return Jump(new, new, before=before)
        if not may_respell or not num or ids[: num - 1] != context[:-1]:
            return NO_JUMP
        old, new_text = self._token_bytes[context[-1]], self._token_bytes[ids[num - 1]]
        pieces = self._pieces(new_text[len(old) :]) if new_text.startswith(old) else []
        if not pieces:
            return NO_JUMP
        rest = ids[num : num + left]
        before = before.removesuffix(old)
        return Jump((ids[num - 1], *rest), (*pieces, *rest), respells=True, before=before)

    def _canonical(self, text: str) -> list[int]:
        """The text's ids; none at all if it does not come back from them as it was."""
        ids = self._encode(text)
        is_lossless = self._bytes_of(ids) == text.encode()
        return ids if is_lossless and self._control_ids.isdisjoint(ids) else []

    def _context(self, outputs: Sequence[int]) -> list[int] | None:
        """The last outputs, as many as are whole characters; None if there are none such."""
        most = min(MAX_CONTEXT, len(outputs))
        for count in range(min(_CONTEXT, most), most + 1):
            ids = [int(token_id) for token_id in outputs[len(outputs) - count :]]
            if not self._control_ids.isdisjoint(ids):
                return None
            try:
                self._bytes_of(ids).decode()
            except UnicodeDecodeError:
                continue
            return ids
        return None

    def _ended(self, found: Jump, ahead: Guide, left: int) -> Jump:
        """Up to where it is certain which tokens come; and the stop token, if nothing else can."""
        row = self._row
        if left <= 0:
            return replace(found, ahead=ahead) if found.ids else found
        if not ahead.fill(row, left):
            return NO_JUMP
        if ahead.is_completed:
            allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
            if len(allowed) == 1:
                end = int(allowed[0])
                return replace(found, ids=(*found.ids, end), accepted=(*found.accepted, end))
        num_spanned = self._num_spanned(found, row, ahead)
        if num_spanned or not found.ids:
            return self._without(num_spanned, found)
        return replace(found, ahead=ahead)

    def _num_spanned(self, found: Jump, row: Bitmask, ahead: Guide) -> int:
        """How many tokens at the end may be part of longer ones."""
        data = self._bytes_of(found.ids)
        ends = list(accumulate(len(self._token_bytes[token_id]) for token_id in found.ids))
        for start in self._window(ends) if ends else ():
            for token_id in self._allowed(self._spanning(data[start:]), row, ahead):
                if self._is_read(found.before + data[:start], token_id):
                    return sum(end > start for end in ends)
        return 0

    def _without(self, num_spanned: int, found: Jump) -> Jump:
        if num_spanned == len(found.ids):
            return NO_JUMP
        ids = found.ids[: len(found.ids) - num_spanned]
        return replace(found, ids=ids, accepted=found.accepted[: len(found.accepted) - num_spanned])

    def _window(self, ends: Sequence[int]) -> range:
        """Where a token may begin that spans the end."""
        length = ends[-1]
        tokens_ago = ends[-_WINDOW_TOKENS - 1] if len(ends) > _WINDOW_TOKENS else 0
        first = max(0, min(length - _WINDOW_BYTES, tokens_ago), length - self._max_bytes + 1)
        return range(first, length)

    def _allowed(self, spanning: _Spanning, row: Bitmask, ahead: Guide) -> Iterator[int]:
        """Of these tokens, those whose rests may come."""
        words = row.view(np.uint32)[spanning.rest_ids // 32]
        are_set = (words >> (spanning.rest_ids % 32).astype(np.uint32) & 1).astype(np.bool_)
        are_tokens = spanning.rest_ids >= 0
        yield from spanning.ids[are_set & are_tokens].tolist()
        for index in np.flatnonzero(~are_tokens).tolist():
            if self._accepts(spanning.rests[index], row, ahead):
                yield int(spanning.ids[index])

    def _is_read(self, before: bytes, token_id: int) -> bool:
        """Whether text that ends with this token is read so that it does."""
        try:
            text = (before + self._token_bytes[token_id]).decode()
        except UnicodeDecodeError:
            return True  # as far as is known
        ids = self._kept(text) if len(text) <= _MAX_KEPT_TEXT else self._canonical(text)
        return not ids or ids[-1] == token_id

    def _accepts(self, rest: bytes, row: Bitmask, ahead: Guide) -> bool:
        """Bytes that are no token: as the tokens that they can be made of."""
        token_ids = self._pieces(rest)
        if not token_ids or not has_bit(row, token_ids[0]):
            return False
        guide = ahead.fork()
        return all(map(guide.accept, token_ids))

    def _pieces(self, text: bytes) -> list[int]:
        """A token for each byte; none at all where a byte has none."""
        ids = [self._ids.get(text[i : i + 1], -1) for i in range(len(text))]
        return [] if -1 in ids else ids

    def _find_spanning(self, begin: bytes) -> _Spanning:
        ids: list[int] = []
        rests: list[bytes] = []
        for index in range(bisect_left(self._sorted, (begin, 0)), len(self._sorted)):
            text, token_id = self._sorted[index]
            if not text.startswith(begin):
                break
            if len(text) > len(begin):
                ids.append(token_id)
                rests.append(text[len(begin) :])
        rest_ids = [self._ids.get(rest, -1) for rest in rests]
        return _Spanning(np.array(ids, np.int64), np.array(rest_ids, np.int64), tuple(rests))

    def _bytes_of(self, ids: Sequence[int]) -> bytes:
        return b"".join(self._token_bytes[token_id] for token_id in ids)
