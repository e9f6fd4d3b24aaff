"""Reads the primitive values of a GGUF file one after another; knows neither keys nor tensors.

Every count is checked against the bytes that are left before anything is allocated for it.
"""

from __future__ import annotations

import struct

import numpy as np

from ..errors import ModelError
from .mapped_file import MappedFile

_STRING = 8
_ARRAY = 9
_BOOL = 7
_SCALARS = {  # GGUF value type -> little-endian struct code, which numpy reads alike
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    _BOOL: "<B",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_MAX_NESTING = 4


class GgufCursor:
    """A position in a file's header that moves on with each value read.

    Raises `ModelError`, naming the file and the byte, where the file ends too early or holds
    what no GGUF file may hold.
    """

    def __init__(self, file: MappedFile, position: int = 0) -> None:
        self._file = file
        self._buffer = file.buffer
        self.position = position

    def fail(self, problem: str) -> ModelError:
        return ModelError(f"{self._file.path}: {problem} at byte {self.position}")

    def take(self, nbytes: int) -> bytes:
        start = self._advance(nbytes)
        return self._buffer[start : self.position]

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def count(self, min_bytes_each: int) -> int:
        """A number of items that follow, each of at least `min_bytes_each` bytes."""
        count = self.u64()
        if count * min_bytes_each > self._file.size - self.position:
            raise self.fail(f"the file is truncated or damaged: {count} items announced")
        return count

    def string(self) -> str:
        length = self.u64()
        try:
            return self.take(length).decode()
        except UnicodeDecodeError:
            raise self.fail("a string that is not UTF-8 ends") from None

    def value(self, value_type: int, nesting: int = 0) -> object:
        """A value of a GGUF value type: str, bool, int, float, or a list of one of these."""
        if value_type == _STRING:
            return self.string()
        if value_type == _ARRAY:
            if nesting == _MAX_NESTING:
                raise self.fail("arrays nested too deep")
            return self._array(nesting + 1)
        code = self._scalar_code(value_type)
        (value,) = struct.unpack(code, self.take(struct.calcsize(code)))
        return bool(value) if value_type == _BOOL else value

    def _array(self, nesting: int) -> list[object]:
        item_type = self.u32()
        if item_type == _STRING:
            return self._strings()
        if item_type == _ARRAY:
            return [self.value(_ARRAY, nesting) for _ in range(self.count(12))]
        code = self._scalar_code(item_type)
        itemsize = struct.calcsize(code)
        count = self.count(itemsize)
        array = np.frombuffer(self.take(count * itemsize), code)
        items: list[object] = (array != 0 if item_type == _BOOL else array).tolist()
        return items

    def _strings(self) -> list[object]:
        """A vocabulary has tens of thousands, so this is `string` in a tight loop."""
        count = self.count(8)
        buffer, size, position = self._buffer, self._file.size, self.position
        strings: list[object] = []
        for _ in range(count):
            start = position + 8
            end = start + int.from_bytes(buffer[position:start], "little")
            try:
                text = buffer[start:end].decode()
            except UnicodeDecodeError:
                text = None
            if text is None or end > size:
                self.position = position
                self.string()  # says what is wrong
            strings.append(text)
            position = end
        self.position = position
        return strings

    def _scalar_code(self, value_type: int) -> str:
        code = _SCALARS.get(value_type)
        if code is None:
            raise self.fail(f"unknown value type {value_type}")
        return code

    def _advance(self, nbytes: int) -> int:
        start = self.position
        if nbytes > self._file.size - start:
            raise self.fail(f"the file is truncated or damaged: {nbytes} bytes announced")
        self.position = start + nbytes
        return start
