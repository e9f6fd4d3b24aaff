"""Reads GGUF files: typed metadata and mapped tensor bytes; knows no architecture.

Format: the GGUF specification, versions 2 and 3, little-endian. The `gguf` library defines
the quantised types and dequantises them. Its own reader makes a numpy view of every element
of every array: 6 s for the metadata of SmolLM2, which take 0.2 s here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn, TypeVar, cast

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from ..errors import ModelError
from .gguf_values import GgufCursor
from .mapped_file import Bytes, MappedFile

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4
_MAX_ELEMENTS = 2**48
_MIN_PAIR_BYTES = 8 + 4 + 1  # key length, value type, value
_MIN_TENSOR_BYTES = 8 + 4 + 4 + 8  # name length, number of dimensions, type, offset

_Item = TypeVar("_Item", str, int)


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor: `shape` in numpy order (rows first), `offset` in bytes from the file's start."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A parsed file. Metadata are plain Python values; arrays are lists of them.

    The getters raise `ModelError`, naming file and key, if the value is missing and no default
    is given, or if it is of another type.
    """

    metadata: Mapping[str, object]
    tensors: Mapping[str, GgufTensor]
    file: MappedFile

    @property
    def path(self) -> Path:
        return self.file.path

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default)
        return value if isinstance(value, str) else self._refuse(key, value, "a string")

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._value(key, default)
        return value if type(value) is int else self._refuse(key, value, "an integer")

    def number(self, key: str, default: float | None = None) -> float:
        """A float, or an integer as a float."""
        value = self._value(key, default)
        if isinstance(value, float) or type(value) is int:
            return float(value)
        self._refuse(key, value, "a number")

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self._value(key, default)
        return value if isinstance(value, bool) else self._refuse(key, value, "a boolean")

    def texts(self, key: str) -> list[str]:
        return self._items(key, str, "an array of strings")

    def integers(self, key: str) -> list[int]:
        return self._items(key, int, "an array of integers")

    def raw(self, name: str) -> Bytes:
        """The tensor's bytes as stored, mapped and not copied."""
        tensor = self.tensors[name]
        return self.file.view(tensor.offset, tensor.nbytes)

    def release(self, name: str) -> None:
        """Give the memory behind the tensor's bytes back to the system."""
        tensor = self.tensors[name]
        self.file.release(tensor.offset, tensor.nbytes)

    def _value(self, key: str, default: object) -> object:
        value = self.metadata.get(key, default)
        if value is None:
            raise ModelError(f"{self.path}: metadata has no {key!r}")
        return value

    def _items(self, key: str, kind: type[_Item], wanted: str) -> list[_Item]:
        value = self._value(key, None)
        if not isinstance(value, list):
            self._refuse(key, value, wanted)
        items = cast(list[object], value)
        if not all(type(item) is kind for item in items):
            self._refuse(key, items, wanted)
        return cast(list[_Item], items)

    def _refuse(self, key: str, value: object, wanted: str) -> NoReturn:
        raise ModelError(f"{self.path}: metadata {key!r} must be {wanted}, not {value!r:.80}")


def read_gguf(path: Path) -> GgufFile:
    """Parse and check the file's header and map its tensors; no tensor is read.

    Raises `ModelError` for whatever is no whole GGUF file of a known version.
    """
    file = MappedFile(path)
    cursor = GgufCursor(file)
    _check_magic_and_version(cursor)
    num_tensors, num_pairs = cursor.count(_MIN_TENSOR_BYTES), cursor.count(_MIN_PAIR_BYTES)
    metadata = _read_metadata(cursor, num_pairs)
    infos = [_read_tensor_info(cursor) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise ModelError(f"{path}: general.alignment is {alignment!r}, not a power of two")
    data_start = -(-cursor.position // alignment) * alignment
    tensors = {info.name: _place(file, info, data_start) for info in infos}
    if len(tensors) < len(infos):
        raise ModelError(f"{path}: two tensors have the same name")
    return GgufFile(metadata, tensors, file)


def _check_magic_and_version(cursor: GgufCursor) -> None:
    if cursor.take(len(_MAGIC)) != _MAGIC:
        raise cursor.fail("not a GGUF file: no magic number")
    version = cursor.u32()
    if version and version & 0xFFFF == 0:
        raise cursor.fail("big-endian GGUF is not supported; byte order swapped")
    if version not in _VERSIONS:
        raise cursor.fail(f"GGUF version {version} is not supported (2 and 3 are);")


def _read_metadata(cursor: GgufCursor, num_pairs: int) -> dict[str, object]:
    metadata: dict[str, object] = {}
    for _ in range(num_pairs):
        key = cursor.string()
        if key in metadata:
            raise cursor.fail(f"metadata {key!r} appears twice:")
        metadata[key] = cursor.value(cursor.u32())
    return metadata


def _read_tensor_info(cursor: GgufCursor) -> GgufTensor:
    """One entry of the tensor directory; its `offset` counts from the start of the data."""
    name = cursor.string()
    num_dimensions = cursor.u32()
    if num_dimensions > _MAX_DIMENSIONS:
        raise cursor.fail(f"tensor {name!r} has {num_dimensions} dimensions")
    shape = tuple(reversed([cursor.u64() for _ in range(num_dimensions)]))
    type_id, offset = cursor.u32(), cursor.u64()
    try:
        tensor_type = GGMLQuantizationType(type_id)
    except ValueError:
        raise cursor.fail(f"tensor {name!r} has unknown type {type_id}") from None
    block_len, block_nbytes = GGML_QUANT_SIZES[tensor_type]
    num_elements = math.prod(shape)
    if num_elements > _MAX_ELEMENTS or (shape[-1] if shape else 1) % block_len:
        raise cursor.fail(f"tensor {name!r} of type {tensor_type.name} has bad shape {shape}")
    return GgufTensor(name, shape, tensor_type, offset, num_elements // block_len * block_nbytes)


def _place(file: MappedFile, info: GgufTensor, data_start: int) -> GgufTensor:
    """The tensor with its offset counted from the file's start."""
    offset = data_start + info.offset
    if offset + info.nbytes > file.size:
        raise ModelError(
            f"{file.path}: the file is truncated: tensor {info.name!r} ends at byte "
            f"{offset + info.nbytes}, the file at {file.size}"
        )
    return replace(info, offset=offset)
