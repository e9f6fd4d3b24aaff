"""Weights from GGUF files equal what the gguf library has, in the order the forward takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize
from torch import Tensor

from espalier.runtime.errors import ModelError
from espalier.runtime.hub.gguf_file import read_gguf
from espalier.runtime.hub.source import ModelSource, resolve_model
from espalier.runtime.models.config import ModelConfig
from espalier.runtime.models.loader import load_weights
from tests.checkpoints import assert_same_weights, interleave, tiny_llama, write_gguf


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", [Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_1])
def test_gguf_file(tmp_path: Path, kind: Type, tied: bool) -> None:
    path = tmp_path / "tiny.gguf"
    state = tiny_llama(tied=tied).state_dict()
    seen = write_gguf(path, state, matrix_type=kind, tied=tied)
    if kind == Type.F32:
        assert all(torch.equal(seen[name], state[name]) for name in state)
    assert_same_weights(load_weights(ModelSource("gguf", path, "tiny")), seen)
    assert_same_weights(
        load_weights(ModelSource("gguf", path, "tiny"), dtype=torch.bfloat16), seen, torch.bfloat16
    )


def test_missing_and_unknown_tensors_are_named(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, tiny_llama(tied=True).state_dict(), matrix_type=Type.F32, tied=True)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"blk.1.ffn_up", b"blk.1.ffn_xx"))
    with pytest.raises(ModelError, match=r"tiny\.gguf: tensor 'blk.1.ffn_up.weight' is missing"):
        load_weights(ModelSource("gguf", path, "tiny"))
    path.write_bytes(data.replace(b"rope_freqs", b"rope_freqz"))
    with pytest.raises(ModelError, match="'rope_freqz.weight' is not part"):
        load_weights(ModelSource("gguf", path, "tiny"))


def test_default_model_equals_the_gguf_library() -> None:
    try:
        source = resolve_model("smollm2")
    except ModelError as error:
        pytest.skip(str(error))
    file = read_gguf(source.path)
    loaded = load_weights(source)
    config = ModelConfig.from_gguf(file)
    assert loaded.config == config

    def stored(name: str) -> Tensor:
        tensor = file.tensors[name]
        rows = file.raw(name).reshape(tensor.shape[0], -1)
        return torch.tensor(dequantize(rows, tensor.type))

    layer = loaded.weights.layers[7]
    num_queries = config.num_heads * config.head_dim
    assert torch.equal(loaded.weights.embed_VD, stored("token_embd.weight"))
    assert loaded.weights.head_VD is loaded.weights.embed_VD
    assert torch.equal(layer.down_DF, stored("blk.7.ffn_down.weight"))
    assert torch.equal(layer.gate_up_GD[config.intermediate_size :], stored("blk.7.ffn_up.weight"))
    queries = torch.tensor(interleave(layer.qkv_ED[:num_queries].numpy(), config.num_heads))
    assert torch.equal(queries, stored("blk.7.attn_q.weight"))
