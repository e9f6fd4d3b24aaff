"""A GGUF file as a checkpoint: blocks of rows of its tensors, dequantised or as stored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from espalier.kernels.packing import GGUF_TYPES, BlockFormat, Format, block_nbytes

from ..errors import ModelError
from ..hub.gguf_file import GgufFile
from ..hub.mapped_file import Bytes
from .checkpoint import float_format

_BLOCK_FORMATS: dict[GGMLQuantizationType, BlockFormat] = {
    kind: format for format, kind in GGUF_TYPES.items()
}
_FLOATS = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.BF16: torch.bfloat16,
}


class GgufCheckpoint:
    """The tensors of a parsed GGUF file."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file

    @property
    def path(self) -> Path:
        return self._file.path

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: tensor.shape for name, tensor in self._file.tensors.items()}

    def read_rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows [start, stop) of a matrix as float32, copied; a vector is a matrix of one row.

        Raises `ModelError` if the `gguf` library can't dequantise the tensor's type.
        """
        tensor = self._file.tensors[name]
        try:
            rows = cast(
                "npt.NDArray[np.float32]",
                dequantize(self._stored(name, start, stop), tensor.type),
            )
        except NotImplementedError as error:
            raise ModelError(
                f"{self.path}: tensor {name!r} has type {tensor.type.name}, which can't be read"
            ) from error
        copied = np.require(rows, np.float32, "W")
        return torch.frombuffer(copied, dtype=torch.float32).view(copied.shape)

    def stored_format(self, name: str) -> Format | None:
        """The packed format that holds the values as they are stored, if there is one."""
        kind = self._file.tensors[name].type
        if kind in _FLOATS:
            return float_format(_FLOATS[kind])
        return _BLOCK_FORMATS.get(kind)

    def read_stored(self, name: str, start: int, stop: int) -> Tensor:
        """Rows [start, stop) as they are stored, copied: floats, or blocks of uint8."""
        kind = self._file.tensors[name].type
        stored = self._stored(name, start, stop)
        data = torch.frombuffer(stored.copy(), dtype=torch.uint8)
        if kind in _FLOATS:
            return data.view(_FLOATS[kind]).view(len(stored), -1)
        return data.view(len(stored), -1, block_nbytes(_BLOCK_FORMATS[kind]))

    def _stored(self, name: str, start: int, stop: int) -> Bytes:
        shape = self._file.tensors[name].shape
        num_rows = shape[0] if len(shape) == 2 else 1
        return self._file.raw(name).reshape(num_rows, -1)[start:stop]

    def release(self, name: str) -> None:
        """Give the memory behind the tensor's stored bytes back to the system."""
        self._file.release(name)
