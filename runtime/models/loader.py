"""Loads a model: reads its configuration, checks its tensors, puts each into its place.

The weights are allocated once. Stored tensors are mapped, converted in blocks of rows and let
go, so that memory while loading stays within a few blocks of the final weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor

from ..errors import ModelError
from ..hub.gguf_file import read_gguf
from ..hub.source import ModelSource
from .config import ModelConfig
from .gguf_weights import GgufCheckpoint
from .names import GGUF, HUGGING_FACE, PlannedTensor, Spelling, plan_tensors
from .safetensors_weights import SafetensorsCheckpoint
from .weights import LlamaWeights, allocate, destination

_BLOCK_ELEMENTS = 1 << 20


class LoadedModel(NamedTuple):
    config: ModelConfig
    weights: LlamaWeights


class Checkpoint(Protocol):
    """Named tensors on disk. A vector is read as a matrix of one row."""

    @property
    def path(self) -> Path: ...

    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    def read_rows(self, name: str, start: int, stop: int) -> Tensor: ...

    def release(self, name: str) -> None: ...


def load_weights(source: ModelSource, *, dtype: torch.dtype = torch.float32) -> LoadedModel:
    """Load the model's weights into CPU memory as `dtype`.

    Raises `ModelError`, naming the file and the tensor or field, if the architecture is not
    supported or a tensor is missing, unknown or of the wrong shape.
    """
    if source.kind == "gguf":
        file = read_gguf(source.path)
        return _load(ModelConfig.from_gguf(file), GgufCheckpoint(file), GGUF, dtype)
    config = read_hf_config(source.path)
    return _load(config, SafetensorsCheckpoint(source.path), HUGGING_FACE, dtype)


def read_hf_config(directory: Path) -> ModelConfig:
    """The configuration in a Hugging Face directory; `ModelError` names the file and field."""
    path = directory / "config.json"
    try:
        document: object = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: {error}") from error
    if not isinstance(document, dict):
        raise ModelError(f"{path}: not a JSON object")
    return ModelConfig.from_hf(cast("dict[str, object]", document), str(path))


def _load(
    config: ModelConfig, checkpoint: Checkpoint, spelling: Spelling, dtype: torch.dtype
) -> LoadedModel:
    planned = _check_tensors(config, checkpoint, spelling)
    weights = allocate(config, dtype)
    for tensor in planned:
        _place(checkpoint, tensor, destination(weights, config, tensor))
    return LoadedModel(config, weights)


def _check_tensors(
    config: ModelConfig, checkpoint: Checkpoint, spelling: Spelling
) -> list[PlannedTensor]:
    """The plan, once it is sure that the checkpoint has exactly the tensors in it."""
    shapes = dict(checkpoint.shapes())
    planned: list[PlannedTensor] = []
    for tensor in plan_tensors(config, spelling):
        shape = shapes.pop(tensor.name, None)
        if shape is None:
            raise ModelError(f"{checkpoint.path}: tensor {tensor.name!r} is missing")
        if shape != tensor.shape:
            raise ModelError(
                f"{checkpoint.path}: tensor {tensor.name!r} has shape {shape}, but the "
                f"configuration makes it {tensor.shape}"
            )
        planned.append(tensor)
    for name in shapes:  # the head is left over if it is tied: some checkpoints repeat it
        if name != spelling.top["head"] and not spelling.harmless.fullmatch(name):
            raise ModelError(f"{checkpoint.path}: tensor {name!r} is not part of a Llama model")
    return planned


def _place(checkpoint: Checkpoint, tensor: PlannedTensor, target: Tensor) -> None:
    """Copy a tensor into `target`, converting a block of rows at a time."""
    target_RC = target if target.dim() == 2 else target.unsqueeze(0)
    num_rows, num_columns = target_RC.shape
    heads = tensor.num_interleaved_heads
    places = _row_places(num_rows, heads) if heads else None
    step = max(1, _BLOCK_ELEMENTS // num_columns)
    for start in range(0, num_rows, step):
        stop = min(start + step, num_rows)
        block_RC = checkpoint.read_rows(tensor.name, start, stop)
        if places is None:
            target_RC[start:stop].copy_(block_RC)
        else:
            target_RC.index_copy_(0, places[start:stop], block_RC.to(target_RC.dtype))
        checkpoint.release(tensor.name)


def _row_places(num_rows: int, num_interleaved_heads: int) -> Tensor:
    """For each stored row, its row in the weights.

    An interleaved head stores rows 0, d/2, 1, d/2 + 1, ...: the two that RoPE turns together
    side by side.
    """
    places = torch.arange(num_rows)
    return places.view(num_interleaved_heads, 2, -1).transpose(1, 2).reshape(-1)
