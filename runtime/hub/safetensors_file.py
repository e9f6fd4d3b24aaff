"""Reads safetensors files: the header and mapped tensor bytes; knows no model.

Format: 8 bytes little-endian header length, a JSON header, then the tensors' bytes. The
safetensors library keeps every page it has touched mapped until the file is closed; here the
bytes of a tensor can be released one by one, which bounds the memory a load needs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast

import msgspec

from ..errors import ModelError
from .mapped_file import Bytes, MappedFile

_LENGTH_NBYTES = 8
_MAX_HEADER_NBYTES = 100_000_000  # the reference implementation's limit
_ITEM_NBYTES = {
    **{"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1},
    **{"U16": 2, "I16": 2, "F16": 2, "BF16": 2},
    **{"U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8},
}

_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[_Count, ...]
    data_offsets: tuple[_Count, _Count]


@dataclass(frozen=True, slots=True)
class SafeTensor:
    """One tensor: `dtype` as the format spells it, `offset` in bytes from the file's start."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """A parsed file."""

    tensors: Mapping[str, SafeTensor]
    file: MappedFile

    def raw(self, name: str) -> Bytes:
        """The tensor's bytes as stored, mapped and not copied."""
        tensor = self.tensors[name]
        return self.file.view(tensor.offset, tensor.nbytes)

    def release(self, name: str) -> None:
        """Give the memory behind the tensor's bytes back to the system."""
        tensor = self.tensors[name]
        self.file.release(tensor.offset, tensor.nbytes)


def read_safetensors(path: Path) -> SafetensorsFile:
    """Parse and check the file's header and map its tensors; no tensor is read.

    Raises `ModelError` for whatever is no whole safetensors file.
    """
    file = MappedFile(path)
    if file.size < _LENGTH_NBYTES:
        raise ModelError(f"{path}: the file is truncated: {file.size} bytes")
    header_nbytes = int.from_bytes(file.buffer[:_LENGTH_NBYTES], "little")
    data_start = _LENGTH_NBYTES + header_nbytes
    if header_nbytes > _MAX_HEADER_NBYTES or data_start > file.size:
        raise ModelError(f"{path}: the file is truncated or damaged: {header_nbytes} header bytes")
    try:
        header: object = json.loads(file.buffer[_LENGTH_NBYTES:data_start])
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: the header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise ModelError(f"{path}: the header is not a JSON object")
    entries = cast("dict[str, object]", header)
    return SafetensorsFile(
        {
            name: _read_entry(file, data_start, name, entry)
            for name, entry in entries.items()
            if name != "__metadata__"
        },
        file,
    )


def _read_entry(file: MappedFile, data_start: int, name: str, entry: object) -> SafeTensor:
    try:
        info = msgspec.convert(entry, _Entry)
    except msgspec.ValidationError as error:
        raise ModelError(f"{file.path}: tensor {name!r}: {error}") from error
    itemsize = _ITEM_NBYTES.get(info.dtype)
    if itemsize is None:
        raise ModelError(f"{file.path}: tensor {name!r} has unknown type {info.dtype!r}")
    begin, end = info.data_offsets
    if end - begin != math.prod(info.shape) * itemsize:
        raise ModelError(f"{file.path}: tensor {name!r}: shape and number of bytes disagree")
    if data_start + end > file.size:
        raise ModelError(
            f"{file.path}: the file is truncated: tensor {name!r} ends at byte "
            f"{data_start + end}, the file at {file.size}"
        )
    return SafeTensor(name, info.dtype, info.shape, data_start + begin, end - begin)
