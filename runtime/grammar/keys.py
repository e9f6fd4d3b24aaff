"""Keys of JSON objects that must not stand twice; knows bytes of compact JSON, no grammar.

A grammar can't remember keys that its schema does not name. This follows a text that the grammar
allows, so anything but strings and brackets can be skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .token_masks import Bitmask

_QUOTE, _BACKSLASH = b'"', b"\\"
_STRUCTURE = re.compile(rb'["{}\[\],]')
_ENDS_VALUE = re.compile(b'".*,', re.DOTALL)  # of a string, and goes on to the next member

Ids = npt.NDArray[np.int64]
KeyPlace = tuple[tuple[frozenset[bytes] | None, ...], bytes | None, bool, bool]


@dataclass(slots=True)
class Keys:
    """Where a text stands: `open` has the keys of each object that is open, None for an array.

    string: the bytes of the string that is being read, None outside of one; `is_key` tells what
    the next or present string is.
    """

    open: tuple[frozenset[bytes] | None, ...] = ()
    string: bytes | None = None
    is_escaped: bool = False
    is_key: bool = False
    has_repeated: bool = field(default=False)

    def copy(self) -> Keys:
        return Keys(self.open, self.string, self.is_escaped, self.is_key, self.has_repeated)

    def advance(self, text: bytes) -> None:
        """Sets `has_repeated` if a key of `text` is in its object already."""
        at = 0
        while at < len(text):
            if self.string is None:
                found = _STRUCTURE.search(text, at)
                if found is None:
                    return
                at = found.end()
                self._outside(text[at - 1])
            else:
                at = self._in_string(text, at)

    @property
    def place(self) -> KeyPlace:
        """Equal where the same may come next."""
        return self.open, self.string, self.is_escaped, self.is_key

    def barred(self) -> list[bytes]:
        """What of the keys that are there is left after the string that is read: as it is none
        of the rests that may come. All of them between strings."""
        keys = self.open[-1] if self.open else None
        if not keys or not self.is_key:
            return []
        begun = self.string or b""
        return [key[len(begun) :] for key in keys if key.startswith(begun)]

    @property
    def num_open(self) -> int:
        """Keys of all objects that are open."""
        return sum(len(keys) for keys in self.open if keys)

    @property
    def quotes_to_repeat(self) -> int | None:
        """How many quotes a token has at the least that ends a repeated key; None: no token can.

        One ends a key that is being read, three end a value and read a key after it.
        """
        if not any(self.open):
            return None
        if self.string is None:
            return 2
        return 1 if self.barred() else 3

    def _in_string(self, text: bytes, start: int) -> int:
        """Reads what of `text` is in the string from `start` on; where that ends."""
        assert self.string is not None
        end = text.find(_QUOTE, start)
        while end >= 0 and self._is_escaped(text, start, end):
            end = text.find(_QUOTE, end + 1)
        read = text[start:end] if end >= 0 else text[start:]
        if self.is_key:
            self.string += read
        if end >= 0:
            self._end_string(self.string)
            self.is_escaped = False
            return end + 1
        self.is_escaped = self._is_escaped(text, start, len(text))
        return len(text)

    def _is_escaped(self, text: bytes, start: int, at: int) -> bool:
        """By the backslashes before `at`; those before `start` are known by `is_escaped`."""
        num = at - start - len(text[start:at].rstrip(_BACKSLASH))
        before = self.is_escaped and num == at - start
        return (num + before) % 2 == 1

    def _end_string(self, string: bytes) -> None:
        self.string = None
        keys = self.open[-1] if self.open else None
        if self.is_key and keys is not None:
            self.has_repeated |= string in keys
            self.open = (*self.open[:-1], keys | {string})
            self.is_key = False

    def _outside(self, byte: int) -> None:
        match byte:
            case 0x22:  # "
                self.string = b""
            case 0x7B:  # {
                self.open = (*self.open, frozenset())
                self.is_key = True
            case 0x5B:  # [
                self.open = (*self.open, None)
                self.is_key = False
            case 0x7D | 0x5D:  # } ]
                self.open = self.open[:-1]
                self.is_key = False
            case _:  # ,
                self.is_key = bool(self.open) and self.open[-1] is not None


class KeyTokens:
    """The tokens that can begin or end a key, by where the text stands."""

    def __init__(self, token_bytes: Sequence[bytes], allowed: Sequence[bool]) -> None:
        texts = [text if ok else b"" for text, ok in zip(token_bytes, allowed, strict=True)]
        self._outside = _ids(b'"' in text or b"," in text for text in texts)
        self._in_key = _ids(b'"' in text for text in texts)
        counts = np.array([text.count(b'"') for text in texts])
        self._by_quotes = {least: np.flatnonzero(counts >= least) for least in (1, 2, 3)}
        self._in_value = _ids(_ENDS_VALUE.search(text) is not None for text in texts)

    def among(self, row: Bitmask, num_quotes: int) -> Ids:
        """Those with as many quotes (1 to 3) or more that are set in `row`."""
        token_ids = self._by_quotes[num_quotes]
        words = row.view(np.uint32)[token_ids // 32]
        found: Ids = token_ids[(words >> (token_ids % 32).astype(np.uint32) & 1) != 0]
        return found

    def at(self, keys: Keys) -> Ids:
        if keys.string is None:
            return self._outside
        return self._in_key if keys.is_key else self._in_value


def _ids(are_wanted: Iterable[bool]) -> Ids:
    return np.flatnonzero(np.fromiter(are_wanted, dtype=np.bool_))
