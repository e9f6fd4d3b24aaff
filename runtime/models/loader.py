"""Loads a model: reads its configuration, checks its tensors, puts each into its place.

The weights are allocated once. Stored tensors are mapped, converted in blocks of rows and let
go, so that memory while loading stays within a few blocks of the final weights.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Generic, NamedTuple, cast

import torch
from torch import Tensor

from espalier.kernels.packing import PackedLinear

from ..config import WeightDtype
from ..errors import ModelError
from ..hub.gguf_file import read_gguf
from ..hub.source import ModelSource
from .checkpoint import Checkpoint, row_places
from .config import ModelConfig
from .gguf_weights import GgufCheckpoint
from .names import GGUF, HUGGING_FACE, PlannedTensor, Spelling, plan_tensors
from .packed import pack_tensors
from .safetensors_weights import SafetensorsCheckpoint
from .weights import LlamaWeights, W, allocate, destination

_BLOCK_ELEMENTS = 1 << 20


class LoadedModel(NamedTuple, Generic[W]):
    config: ModelConfig
    weights: LlamaWeights[W]


def load_weights(source: ModelSource, *, dtype: torch.dtype = torch.float32) -> LoadedModel[Tensor]:
    """Load the model's weights into CPU memory as `dtype`, for torch.

    Raises `ModelError`, naming the file and the tensor or field, if the architecture is not
    supported or a tensor is missing, unknown or of the wrong shape.
    """
    config, checkpoint, planned = _open(source)
    weights = allocate(config, dtype)
    for tensor in planned:
        _place(checkpoint, tensor, destination(weights, config, tensor))
    return LoadedModel(config, weights)


def load_packed_weights(source: ModelSource, dtype: WeightDtype) -> LoadedModel[PackedLinear]:
    """Load the model's weights into CPU memory for the native kernels, packed as `dtype` asks.

    Raises `ModelError` as `load_weights` does.
    """
    config, checkpoint, planned = _open(source)
    return LoadedModel(config, pack_tensors(checkpoint, planned, config, dtype))


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


class _Opened(NamedTuple):
    config: ModelConfig
    checkpoint: Checkpoint
    planned: list[PlannedTensor]


def _open(source: ModelSource) -> _Opened:
    if source.kind == "gguf":
        file = read_gguf(source.path)
        config, spelling = ModelConfig.from_gguf(file), GGUF
        checkpoint: Checkpoint = GgufCheckpoint(file)
    else:
        config, spelling = read_hf_config(source.path), HUGGING_FACE
        checkpoint = SafetensorsCheckpoint(source.path)
    return _Opened(config, checkpoint, _check_tensors(config, checkpoint, spelling))


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
    places = row_places(num_rows, heads) if heads else None
    step = max(1, _BLOCK_ELEMENTS // num_columns)
    for start in range(0, num_rows, step):
        stop = min(start + step, num_rows)
        block_RC = checkpoint.read_rows(tensor.name, start, stop)
        if places is None:
            target_RC[start:stop].copy_(block_RC)
        else:
            target_RC.index_copy_(0, places[start:stop], block_RC.to(target_RC.dtype))
        checkpoint.release(tensor.name)
