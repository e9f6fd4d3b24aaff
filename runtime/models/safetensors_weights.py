"""A directory of safetensors files as a checkpoint: one file, or shards with an index."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from espalier.kernels.packing import Format

from ..errors import ModelError
from ..hub.safetensors_file import SafetensorsFile, read_safetensors
from .checkpoint import float_format

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class _Index(msgspec.Struct, frozen=True):
    weight_map: dict[str, str]


class SafetensorsCheckpoint:
    """The tensors of all files of a model, in the types in which they are stored."""

    def __init__(self, path: Path) -> None:
        """Raises `ModelError` if a file is missing, is damaged or lacks an indexed tensor."""
        self.path = path
        self._owners: dict[str, SafetensorsFile] = {}
        if (path / SINGLE_FILE).is_file():
            file = read_safetensors(path / SINGLE_FILE)
            self._owners = dict.fromkeys(file.tensors, file)
        elif (path / INDEX_FILE).is_file():
            self._open_shards(path / INDEX_FILE)
        else:
            raise ModelError(f"{path}: there is neither {SINGLE_FILE} nor {INDEX_FILE}")

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: file.tensors[name].shape for name, file in self._owners.items()}

    def read_rows(self, name: str, start: int, stop: int) -> Tensor:
        """Rows [start, stop) of a matrix, copied; a vector is a matrix of one row.

        Raises `ModelError` if the tensor's type is not f32, f16 or bf16.
        """
        file = self._owners[name]
        tensor = file.tensors[name]
        dtype = _DTYPES.get(tensor.dtype)
        if dtype is None:
            raise ModelError(
                f"{file.file.path}: tensor {name!r} has type {tensor.dtype}, not one of "
                f"{', '.join(_DTYPES)}"
            )
        num_rows = tensor.shape[0] if len(tensor.shape) == 2 else 1
        stored = file.raw(name).reshape(num_rows, -1)[start:stop]
        return torch.frombuffer(stored.copy(), dtype=dtype).view(len(stored), -1)

    def stored_format(self, name: str) -> Format | None:
        """The packed format that holds the values as they are stored, if there is one."""
        dtype = _DTYPES.get(self._owners[name].tensors[name].dtype)
        return None if dtype is None else float_format(dtype)

    def read_stored(self, name: str, start: int, stop: int) -> Tensor:
        """Rows [start, stop) as they are stored, copied."""
        return self.read_rows(name, start, stop)

    def release(self, name: str) -> None:
        """Give the memory behind the tensor's stored bytes back to the system."""
        self._owners[name].release(name)

    def _open_shards(self, index_path: Path) -> None:
        try:
            index = msgspec.json.decode(index_path.read_bytes(), type=_Index)
        except (OSError, msgspec.DecodeError) as error:
            raise ModelError(f"{index_path}: {error}") from error
        shards: dict[str, SafetensorsFile] = {}
        for name, shard_name in index.weight_map.items():
            if shard_name not in shards:
                shards[shard_name] = self._open_shard(index_path, shard_name)
            if name not in shards[shard_name].tensors:
                raise ModelError(f"{index_path}: tensor {name!r} is not in {shard_name}")
            self._owners[name] = shards[shard_name]

    def _open_shard(self, index_path: Path, shard_name: str) -> SafetensorsFile:
        if Path(shard_name).name != shard_name or not shard_name.endswith(".safetensors"):
            raise ModelError(f"{index_path}: {shard_name!r} is not the name of a file beside it")
        return read_safetensors(self.path / shard_name)
