"""What a load asks of stored tensors, and tensors in memory as an answer; knows no file format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from espalier.kernels.packing import Format

_FLOAT_FORMATS: dict[torch.dtype, Format] = {torch.float32: "f32", torch.bfloat16: "bf16"}


class StoredTensors(Protocol):
    """Named tensors. A vector is read as a matrix of one row."""

    def stored_format(self, name: str) -> Format | None:
        """The packed format that holds the values exactly in as many bytes, if there is one."""
        ...

    def read_rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows [start, stop) as floats."""
        ...

    def read_stored(self, name: str, start: int, stop: int) -> Tensor:
        """Rows [start, stop) of a tensor that has a `stored_format`: floats of that type, or
        uint8 of [rows, blocks of a row, bytes of a block]."""
        ...

    def release(self, name: str) -> None:
        """Give the memory behind the tensor's stored bytes back to the system."""
        ...


class Checkpoint(StoredTensors, Protocol):
    """A model's tensors on disk."""

    @property
    def path(self) -> Path: ...

    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...


class TensorsInMemory:
    """Float tensors that somebody else holds."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors

    def stored_format(self, name: str) -> Format | None:
        return float_format(self._tensors[name].dtype)

    def read_rows(self, name: str, start: int, stop: int) -> Tensor:
        tensor = self._tensors[name]
        return (tensor if tensor.dim() == 2 else tensor.unsqueeze(0))[start:stop]

    def read_stored(self, name: str, start: int, stop: int) -> Tensor:
        return self.read_rows(name, start, stop)

    def release(self, name: str) -> None:
        """Their holder frees them."""


def float_format(dtype: torch.dtype) -> Format | None:
    """The packed format of one float type, if there is one."""
    return _FLOAT_FORMATS.get(dtype)


def row_places(num_rows: int, num_interleaved_heads: int) -> Tensor:
    """For each stored row, its row in the weights.

    An interleaved head stores rows 0, d/2, 1, d/2 + 1, ...: the two that RoPE turns together
    side by side.
    """
    places = torch.arange(num_rows)
    return places.view(num_interleaved_heads, 2, -1).transpose(1, 2).reshape(-1)
