"""A GGUF file as a checkpoint: its tensors, dequantised a block of rows at a time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from gguf.quants import dequantize
from torch import Tensor

from ..errors import ModelError
from ..hub.gguf_file import GgufFile


class GgufCheckpoint:
    """The tensors of a parsed GGUF file, as float32."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file

    @property
    def path(self) -> Path:
        return self._file.path

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: tensor.shape for name, tensor in self._file.tensors.items()}

    def read_rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows [start, stop) of a matrix, copied; a vector is a matrix of one row.

        Raises `ModelError` if the `gguf` library can't dequantise the tensor's type.
        """
        tensor = self._file.tensors[name]
        num_rows = tensor.shape[0] if len(tensor.shape) == 2 else 1
        stored = self._file.raw(name).reshape(num_rows, -1)[start:stop]
        try:
            rows = cast("npt.NDArray[np.float32]", dequantize(stored, tensor.type))
        except NotImplementedError as error:
            raise ModelError(
                f"{self.path}: tensor {name!r} has type {tensor.type.name}, which can't be read"
            ) from error
        copied = np.require(rows, np.float32, "W")
        return torch.frombuffer(copied, dtype=torch.float32).view(copied.shape)

    def release(self, name: str) -> None:
        """Give the memory behind the tensor's stored bytes back to the system."""
        self._file.release(name)
