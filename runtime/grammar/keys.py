"""Keys of JSON objects that must not stand twice; knows bytes of compact JSON, no grammar.

A grammar can't remember keys that its schema does not name. This follows a text that the grammar
allows, so anything but strings and brackets can be skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from .token_masks import Bitmask

_QUOTE, _BACKSLASH = b'"\\'


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

    def advance(self, text: Iterable[int]) -> None:
        """Sets `has_repeated` if a key of `text` is in its object already."""
        for byte in text:
            if self.string is not None:
                self._in_string(byte)
            elif byte == _QUOTE:
                self.string = b""
            else:
                self._outside(byte)

    @property
    def quotes_to_repeat(self) -> int | None:
        """How many quotes a token has at the least that ends a repeated key; None: no token can.

        One ends a key that is being read, three end a value and read a key after it.
        """
        if not any(self.open):
            return None
        if self.string is None:
            return 2
        keys = self.open[-1] if self.is_key and self.open else None
        return 1 if keys and any(key.startswith(self.string) for key in keys) else 3

    def _in_string(self, byte: int) -> None:
        assert self.string is not None
        if byte == _QUOTE and not self.is_escaped:
            self._end_string(self.string)
        else:
            self.is_escaped = byte == _BACKSLASH and not self.is_escaped
            if self.is_key:
                self.string += bytes((byte,))

    def _end_string(self, string: bytes) -> None:
        self.string = None
        keys = self.open[-1] if self.open else None
        if self.is_key and keys is not None:
            self.has_repeated |= string in keys
            self.open = (*self.open[:-1], keys | {string})
            self.is_key = False

    def _outside(self, byte: int) -> None:
        match byte:
            case 0x7B:  # {
                self.open = (*self.open, frozenset())
                self.is_key = True
            case 0x5B:  # [
                self.open = (*self.open, None)
                self.is_key = False
            case 0x7D | 0x5D:  # } ]
                self.open = self.open[:-1]
                self.is_key = False
            case 0x2C:  # ,
                self.is_key = bool(self.open) and self.open[-1] is not None
            case _:
                pass


class QuotingTokens:
    """The tokens with quotes in them, by how many: only these can end a key."""

    def __init__(self, token_bytes: Sequence[bytes], allowed: Sequence[bool]) -> None:
        width = -(-len(token_bytes) // 32) * 32
        counts = [
            text.count(b'"') if ok else 0 for text, ok in zip(token_bytes, allowed, strict=True)
        ]
        padded = np.array([*counts, *[0] * (width - len(counts))])
        self._masks = {
            least: np.packbits(padded >= least, bitorder="little").view("<i4")
            for least in (1, 2, 3)
        }

    def among(self, row: Bitmask, num_quotes: int) -> Iterator[int]:
        """Those with as many quotes (1 to 3) or more that are set in `row`."""
        mask = self._masks[num_quotes]
        found = (row[: len(mask)] & mask).view(np.uint32)
        for word in np.flatnonzero(found).tolist():
            bits = int(found[word])
            while bits:
                yield word * 32 + (bits & -bits).bit_length() - 1
                bits &= bits - 1
