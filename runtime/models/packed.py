"""Packs a model's matrices for the native kernels, a block of rows at a time; knows no file."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor
from typing_extensions import TypeIs

from espalier.kernels.arena import Arena
from espalier.kernels.packing import (
    PANEL,
    PackedLinear,
    PackedMatrix,
    allocate_packed,
    write_blocks,
    write_rows,
)

from ..config import WeightDtype
from .checkpoint import StoredTensors, TensorsInMemory, row_places
from .config import ModelConfig
from .formats import Role, activations, packed_format
from .names import HUGGING_FACE, LayerPart, PlannedTensor, TopPart, plan_tensors
from .weights import LayerWeights, LlamaWeights, destination

AnyWeights = LlamaWeights[Tensor] | LlamaWeights[PackedLinear]

_BLOCK_ELEMENTS = 1 << 18  # with its copies, what the second-level cache holds


def is_packed(weights: AnyWeights) -> TypeIs[LlamaWeights[PackedLinear]]:
    return isinstance(weights.embed_VD, PackedLinear)


def pack_weights(
    weights: LlamaWeights[Tensor], config: ModelConfig, dtype: WeightDtype
) -> LlamaWeights[PackedLinear]:
    """Pack weights that are in memory; the head is tied if these weights' is."""
    config = replace(config, tie_word_embeddings=weights.head_VD is weights.embed_VD)
    planned = list(plan_tensors(config, HUGGING_FACE))
    tensors = {tensor.name: destination(weights, config, tensor) for tensor in planned}
    return pack_tensors(TensorsInMemory(tensors), planned, config, dtype)


def pack_tensors(
    source: StoredTensors,
    planned: Iterable[PlannedTensor],
    config: ModelConfig,
    dtype: WeightDtype,
) -> LlamaWeights[PackedLinear]:
    """Pack the planned tensors of `source`, which are all that the model has."""
    arena = Arena()
    parts = _Parts(dtype)
    for tensor in planned:
        if len(tensor.shape) == 1:
            norm_D = source.read_rows(tensor.name, 0, 1)[0]
            parts.norms[tensor.part, tensor.layer] = norm_D.to(torch.float32, copy=True)
            source.release(tensor.name)
        else:
            parts.matrices[tensor.part, tensor.layer] = _pack(arena, source, tensor, dtype)
    return parts.assembled(config)


def _pack(
    arena: Arena, source: StoredTensors, tensor: PlannedTensor, dtype: WeightDtype
) -> PackedMatrix:
    stored = source.stored_format(tensor.name)
    role: Role = "vocabulary" if tensor.part in ("embed", "head") else "linear"
    format = packed_format(dtype, role, stored)
    read = source.read_stored if format == stored else source.read_rows
    num_rows, num_columns = tensor.shape
    matrix = allocate_packed(arena, format, num_rows, num_columns)
    # Whole panels, and whole heads where rows change their places within one.
    heads = tensor.num_interleaved_heads
    head_rows = num_rows // heads if heads else 1
    unit = math.lcm(PANEL, head_rows)
    step = max(1, _BLOCK_ELEMENTS // (unit * num_columns)) * unit
    for start in range(0, num_rows, step):
        rows = read(tensor.name, start, min(start + step, num_rows))
        if heads:
            rows = _halves_of_heads(rows, head_rows)
        write = write_blocks if rows.dtype == torch.uint8 else write_rows
        write(matrix, start, rows)
        source.release(tensor.name)
    return matrix


def _halves_of_heads(rows: Tensor, head_rows: int) -> Tensor:
    """Whole heads of stored, interleaved rows, in the order of the weights."""
    places = row_places(len(rows), len(rows) // head_rows)
    return torch.empty_like(rows).index_copy_(0, places, rows)


class _Parts:
    """What is packed so far, by part and layer."""

    def __init__(self, dtype: WeightDtype) -> None:
        self.matrices: dict[tuple[TopPart | LayerPart, int], PackedMatrix] = {}
        self.norms: dict[tuple[TopPart | LayerPart, int], Tensor] = {}
        self._dtype: WeightDtype = dtype

    def assembled(self, config: ModelConfig) -> LlamaWeights[PackedLinear]:
        embed_VD = self._linear(0, "embed")
        return LlamaWeights(
            embed_VD=embed_VD,
            layers=tuple(self._layer(layer) for layer in range(config.num_layers)),
            norm_D=self.norms["norm", 0],
            head_VD=embed_VD if config.tie_word_embeddings else self._linear(0, "head"),
        )

    def _layer(self, layer: int) -> LayerWeights[PackedLinear]:
        return LayerWeights(
            attn_norm_D=self.norms["attn_norm", layer],
            qkv_ED=self._linear(layer, "q", "k", "v"),
            out_DE=self._linear(layer, "out"),
            mlp_norm_D=self.norms["mlp_norm", layer],
            gate_up_GD=self._linear(layer, "gate", "up"),
            down_DF=self._linear(layer, "down"),
        )

    def _linear(self, layer: int, *parts: TopPart | LayerPart) -> PackedLinear:
        matrices = tuple(self.matrices[part, layer] for part in parts)
        return PackedLinear(matrices, activations(self._dtype, matrices))
