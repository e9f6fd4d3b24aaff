"""Packed weights: each matrix in the format that `--dtype` says, with the values stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast, get_args

import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize
from torch import Tensor

from espalier.kernels.packing import Activations, Format, PackedLinear, PackedMatrix, unpack
from espalier.runtime.config import WeightDtype
from espalier.runtime.errors import ModelError
from espalier.runtime.hub.gguf_file import read_gguf
from espalier.runtime.hub.source import ModelSource, resolve_model
from espalier.runtime.models.checkpoint import TensorsInMemory
from espalier.runtime.models.config import ModelConfig, RopeConfig
from espalier.runtime.models.loader import LoadedModel, load_packed_weights, load_weights
from espalier.runtime.models.names import GGUF, plan_tensors
from espalier.runtime.models.packed import pack_tensors, pack_weights
from espalier.runtime.models.weights import LlamaWeights
from tests.checkpoints import (
    State,
    assert_same_weights,
    interleave,
    tiny_llama,
    unpacked,
    write_gguf,
)
from tests.fakes import tiny_config, tiny_weights

_DTYPES: tuple[WeightDtype, ...] = get_args(WeightDtype)
_BLOCKS: dict[Type, Format] = {Type.Q8_0: "q8", Type.Q4_0: "q4_0", Type.Q4_1: "q4_1"}
_FLOATS: dict[Type, Format] = {Type.F32: "f32", Type.BF16: "bf16"}
_OTHERS = (Type.F16, Type.Q5_0)
_TYPES = (*_BLOCKS, *_FLOATS, *_OTHERS)


def _linears(weights: LlamaWeights[PackedLinear]) -> Iterator[PackedLinear]:
    for layer in weights.layers:
        yield from (layer.qkv_ED, layer.out_DE, layer.gate_up_GD, layer.down_DF)


def _formats(linear: PackedLinear) -> set[Format]:
    return {matrix.format for matrix in linear.matrices}


def _expected(dtype: WeightDtype, stored: Type) -> tuple[Format, Format, Activations]:
    """The formats of a projection and of the embedding, and how inputs are taken."""
    kept = _BLOCKS.get(stored) or _FLOATS.get(stored) or "f32"
    match dtype:
        case "auto":
            return kept, kept, "quantized" if stored in _BLOCKS else "float32"
        case "float32":
            return kept, kept, "float32"
        case "bfloat16":
            return "bf16", "bf16", "float32"
        case "int8":
            return "q8", "q8", "quantized"
        case "q4":
            if stored in (Type.Q4_0, Type.Q4_1):
                return kept, kept, "quantized"
            return "q4_1", "q8", "quantized"


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("stored", _TYPES, ids=lambda kind: kind.name)
def test_formats_of_a_gguf_file(
    tmp_path: Path, stored: Type, dtype: WeightDtype, tied: bool
) -> None:
    path = tmp_path / "tiny.gguf"
    seen = write_gguf(path, tiny_llama(tied=tied).state_dict(), matrix_type=stored, tied=tied)
    config, weights = load_packed_weights(ModelSource("gguf", path, "tiny"), dtype)
    linear, vocabulary, activations = _expected(dtype, stored)
    for packed in _linears(weights):
        assert (_formats(packed), packed.activations) == ({linear}, activations)
    for packed in (weights.embed_VD, weights.head_VD):
        assert (_formats(packed), packed.activations) == ({vocabulary}, activations)
    assert (weights.head_VD is weights.embed_VD) == tied
    assert [len(packed.matrices) for packed in _linears(weights)] == 2 * [3, 1, 2, 1]
    if dtype in ("auto", "float32"):  # nothing is lost
        assert_same_weights(LoadedModel(config, unpacked(weights)), seen)


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("stored", _TYPES, ids=lambda kind: kind.name)
def test_values_are_those_of_the_dense_weights_packed_alike(
    tmp_path: Path, stored: Type, dtype: WeightDtype
) -> None:
    """Blocks that are kept equal their dequantised floats; all else is what those round to."""
    path = tmp_path / "tiny.gguf"
    write_gguf(path, tiny_llama(tied=False).state_dict(), matrix_type=stored, tied=False)
    source = ModelSource("gguf", path, "tiny")
    dense = load_weights(source)
    found = unpacked(load_packed_weights(source, dtype).weights)
    linear, vocabulary, _ = _expected(dtype, stored)
    if linear == _BLOCKS.get(stored):
        expected = dense.weights
    else:
        expected = unpacked(pack_weights(dense.weights, dense.config, dtype))
    for name in ("qkv_ED", "out_DE", "gate_up_GD", "down_DF"):
        for layer, other in zip(found.layers, expected.layers, strict=True):
            assert torch.equal(getattr(layer, name), getattr(other, name)), name
    if vocabulary == _BLOCKS.get(stored):
        expected = dense.weights
    assert torch.equal(found.embed_VD, expected.embed_VD)
    assert torch.equal(found.head_VD, expected.head_VD)


def test_a_projection_of_several_formats(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    seen = write_gguf(
        path,
        tiny_llama(tied=True).state_dict(),
        matrix_type=Type.F16,
        tied=True,
        other_types={"blk.0.attn_k.weight": Type.Q4_1, "blk.0.attn_v.weight": Type.BF16},
    )
    loaded = load_packed_weights(ModelSource("gguf", path, "tiny"), "auto")
    first, second = (layer.qkv_ED for layer in loaded.weights.layers)
    assert [matrix.format for matrix in first.matrices] == ["f32", "q4_1", "bf16"]
    assert (first.activations, second.activations) == ("quantized", "float32")
    assert_same_weights(LoadedModel(loaded.config, unpacked(loaded.weights)), seen)


def _rounded(state: State, dtype: torch.dtype) -> State:
    return {
        name: tensor.to(dtype if tensor.dim() == 2 else tensor.dtype).float()
        for name, tensor in state.items()
    }


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
def test_hugging_face_directory(tmp_path: Path, stored: torch.dtype) -> None:
    model = tiny_llama(tied=False).to(stored)
    model.save_pretrained(tmp_path)
    source = ModelSource("hf", tmp_path, "tiny")
    state = model.state_dict()
    kept = "bf16" if stored == torch.bfloat16 else "f32"
    for dtype in cast("tuple[WeightDtype, ...]", ("auto", "float32", "bfloat16")):
        config, weights = load_packed_weights(source, dtype)
        format = "bf16" if dtype == "bfloat16" else kept
        assert {f for linear in _linears(weights) for f in _formats(linear)} == {format}
        rounding = torch.bfloat16 if dtype == "bfloat16" else torch.float32
        assert_same_weights(LoadedModel(config, unpacked(weights)), _rounded(state, rounding))
    for linear in _linears(load_packed_weights(source, "q4").weights):
        assert (_formats(linear), linear.activations) == ({"q4_1"}, "quantized")


@pytest.mark.parametrize("head_dim", [8, 24, 64])
def test_rows_beyond_one_block_and_interleaved_heads(head_dim: int) -> None:
    """Blocks of rows hold whole panels and whole heads, also where 16 does not divide a head."""
    config = ModelConfig(
        architecture="llama",
        vocab_size=777,
        hidden_size=1024,
        intermediate_size=40,
        num_layers=1,
        num_heads=960 // head_dim,
        num_kv_heads=960 // head_dim,
        head_dim=head_dim,
        rms_norm_eps=1e-5,
        rope=RopeConfig(10_000.0),
        max_position=8,
        tie_word_embeddings=True,
    )
    generator = torch.Generator().manual_seed(0)
    planned = list(plan_tensors(config, GGUF))
    tensors = {t.name: torch.randn(t.shape, generator=generator) for t in planned}
    expected = dict(tensors)
    for name in ("blk.0.attn_q.weight", "blk.0.attn_k.weight"):
        tensors[name] = torch.tensor(interleave(expected[name].numpy(), config.num_heads))
    weights = pack_tensors(TensorsInMemory(tensors), planned, config, "auto")
    for part, matrix in zip("qkv", weights.layers[0].qkv_ED.matrices, strict=True):
        assert torch.equal(unpack(matrix), expected[f"blk.0.attn_{part}.weight"])
    assert torch.equal(unpack(weights.embed_VD.matrices[0]), expected["token_embd.weight"])


def test_weights_in_memory() -> None:
    config = tiny_config()
    dense = tiny_weights(config)
    packed = pack_weights(dense, config, "auto")
    again = unpacked(packed)
    assert packed.head_VD is packed.embed_VD
    widths = [matrix.num_outputs for matrix in packed.layers[0].qkv_ED.matrices]
    assert widths == [48, 16, 16]
    for layer, other in zip(again.layers, dense.layers, strict=True):
        assert torch.equal(layer.qkv_ED, other.qkv_ED)
        assert torch.equal(layer.gate_up_GD, other.gate_up_GD)
        assert torch.equal(layer.down_DF, other.down_DF)
        assert torch.equal(layer.mlp_norm_D, other.mlp_norm_D)
    dense.layers[0].attn_norm_D.fill_(5.0)
    assert (packed.layers[0].attn_norm_D == 1).all(), "the norms are copies"


@pytest.mark.parametrize(("dtype", "limit"), [("int8", 0.01), ("q4", 0.12)])
def test_quantised_weights_are_near(dtype: WeightDtype, limit: float) -> None:
    """K is 48, no multiple of a block. The error is relative to each matrix's norm."""
    config = tiny_config()
    dense = tiny_weights(config)
    found = unpacked(pack_weights(dense, config, dtype))
    for layer, other in zip(found.layers, dense.layers, strict=True):
        for name in ("qkv_ED", "out_DE", "gate_up_GD", "down_DF"):
            exact = cast(Tensor, getattr(other, name))
            squares = (cast(Tensor, getattr(layer, name)) - exact).square().sum()
            assert 0 < squares < limit**2 * exact.square().sum(), name


def test_missing_tensors_are_named(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, tiny_llama(tied=True).state_dict(), matrix_type=Type.F32, tied=True)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"blk.1.ffn_up", b"blk.1.ffn_xx"))
    with pytest.raises(ModelError, match=r"tiny\.gguf: tensor 'blk.1.ffn_up.weight' is missing"):
        load_packed_weights(ModelSource("gguf", path, "tiny"), "auto")


def test_default_model_keeps_its_blocks() -> None:
    try:
        source = resolve_model("smollm2")
    except ModelError as error:
        pytest.skip(str(error))
    file = read_gguf(source.path)
    config, weights = load_packed_weights(source, "auto")
    assert config == ModelConfig.from_gguf(file)
    assert {f for linear in _linears(weights) for f in _formats(linear)} == {"q4_1"}
    assert _formats(weights.embed_VD) == {"q8"} and weights.head_VD is weights.embed_VD

    def stored(name: str) -> Tensor:
        tensor = file.tensors[name]
        rows = file.raw(name).reshape(tensor.shape[0], -1)
        return torch.tensor(dequantize(rows, tensor.type))

    def check(matrix: PackedMatrix, name: str, num_interleaved_heads: int = 0) -> None:
        found = unpack(matrix)
        if num_interleaved_heads:
            found = torch.tensor(interleave(found.numpy(), num_interleaved_heads))
        assert torch.equal(found, stored(name)), name

    check(weights.embed_VD.matrices[0], "token_embd.weight")
    layer = weights.layers[7]
    query, key, value = layer.qkv_ED.matrices
    check(query, "blk.7.attn_q.weight", config.num_heads)
    check(key, "blk.7.attn_k.weight", config.num_kv_heads)
    check(value, "blk.7.attn_v.weight")
    check(layer.out_DE.matrices[0], "blk.7.attn_output.weight")
    check(layer.gate_up_GD.matrices[0], "blk.7.ffn_gate.weight")
    check(layer.gate_up_GD.matrices[1], "blk.7.ffn_up.weight")
    check(layer.down_DF.matrices[0], "blk.7.ffn_down.weight")
