"""Weights from Hugging Face directories equal transformers'; errors name the tensor or file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor
from transformers import LlamaConfig

from espalier.runtime.errors import ModelError
from espalier.runtime.hub.source import ModelSource
from espalier.runtime.models.loader import load_weights
from tests.checkpoints import (
    HEADS,
    HIDDEN,
    VOCAB,
    assert_same_weights,
    random_llama,
    tiny_llama,
)

_Q = "model.layers.1.self_attn.q_proj.weight"


def _hf(path: Path) -> ModelSource:
    return ModelSource("hf", path, path.name)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shard_size", ["1GB", "40KB"])
def test_hugging_face_directory(tmp_path: Path, tied: bool, shard_size: str) -> None:
    model = tiny_llama(tied=tied)
    model.save_pretrained(tmp_path, max_shard_size=shard_size)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shard_size == "40KB")
    loaded = load_weights(_hf(tmp_path))
    assert len(loaded.weights.layers) == 2
    assert_same_weights(loaded, model.state_dict())


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16])
def test_stored_and_wanted_types(tmp_path: Path, stored: torch.dtype, wanted: torch.dtype) -> None:
    model = tiny_llama(tied=False).to(stored)
    model.save_pretrained(tmp_path)
    assert_same_weights(load_weights(_hf(tmp_path), dtype=wanted), model.state_dict(), wanted)


def test_rows_beyond_one_block(tmp_path: Path) -> None:
    """A matrix of more elements than are converted at a time."""
    config = LlamaConfig(
        vocab_size=20_011,
        hidden_size=HIDDEN,
        intermediate_size=17_001,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        tie_word_embeddings=True,
    )
    model = random_llama(config)
    model.save_pretrained(tmp_path)
    assert_same_weights(load_weights(_hf(tmp_path)), model.state_dict())


def _edited(path: Path, changes: dict[str, Tensor | None], *, tied: bool = False) -> ModelSource:
    """A tiny model's directory with tensors replaced, added or, where None, removed."""
    tiny_llama(tied=tied).save_pretrained(path)
    file = path / "model.safetensors"
    state = {**load(file.read_bytes()), **changes}
    file.write_bytes(save({name: tensor for name, tensor in state.items() if tensor is not None}))
    return _hf(path)


@pytest.mark.parametrize(
    ("name", "tensor", "words"),
    [
        (_Q, None, "is missing"),
        ("lm_head.weight", None, "is missing"),
        (_Q, torch.zeros(64, 65), r"has shape \(64, 65\), but the .* makes it \(64, 64\)"),
        ("model.norm.weight", torch.zeros(1, HIDDEN), "has shape"),
        ("model.layers.2.mlp.up_proj.weight", torch.zeros(1), "is not part of a Llama model"),
        ("model.layers.1.self_attn.q_proj.bias", torch.zeros(HIDDEN), "is not part"),
        (_Q, torch.zeros(64, 64, dtype=torch.int32), "has type I32, not one of F32, F16, BF16"),
    ],
)
def test_wrong_tensors_are_named(
    tmp_path: Path, name: str, tensor: Tensor | None, words: str
) -> None:
    with pytest.raises(ModelError, match=f"tensor '{name}' {words}") as caught:
        load_weights(_edited(tmp_path, {name: tensor}))
    assert str(caught.value).startswith(str(tmp_path))


def test_harmless_tensors_are_skipped(tmp_path: Path) -> None:
    extra: dict[str, Tensor | None] = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8),
        "lm_head.weight": torch.zeros(VOCAB, HIDDEN),  # tied: the embedding counts
    }
    loaded = load_weights(_edited(tmp_path, extra, tied=True))
    assert_same_weights(loaded, tiny_llama(tied=True).state_dict())


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    tiny_llama(tied=True).save_pretrained(tmp_path, max_shard_size="40KB")
    return tmp_path


def _edit_index(directory: Path, file_name: str) -> None:
    """Say that one tensor lies in the file `file_name`."""
    path = directory / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"][_Q] = file_name
    path.write_text(json.dumps(index))


@pytest.mark.parametrize("escape", ["up", "absolute", "inside", "suffix"])
def test_index_cannot_leave_the_directory(sharded: Path, tmp_path: Path, escape: str) -> None:
    inner = sharded / "inner"
    inner.mkdir()
    shard = next(sharded.glob("*.safetensors"))
    shutil.copy(shard, inner / "x.safetensors")
    shutil.copy(shard, sharded / "x.bin")
    names = {
        "up": f"../{sharded.name}/{shard.name}",
        "absolute": str(shard),
        "inside": "inner/x.safetensors",
        "suffix": "x.bin",
    }
    _edit_index(sharded, names[escape])
    with pytest.raises(ModelError, match="is not the name of a file beside it"):
        load_weights(_hf(sharded))


def test_damaged_indexes(sharded: Path) -> None:
    _edit_index(sharded, "absent.safetensors")
    with pytest.raises(ModelError, match="absent.safetensors: No such file"):
        load_weights(_hf(sharded))
    others = [path for path in sharded.glob("*.safetensors") if _Q not in load(path.read_bytes())]
    _edit_index(sharded, others[0].name)
    with pytest.raises(ModelError, match=f"'{_Q}' is not in {others[0].name}"):
        load_weights(_hf(sharded))
    (sharded / "model.safetensors.index.json").write_text('{"weight_map": [1]}')
    with pytest.raises(ModelError, match=r"index\.json: Expected `object`"):
        load_weights(_hf(sharded))
    (sharded / "model.safetensors.index.json").unlink()
    with pytest.raises(ModelError, match="neither model.safetensors nor"):
        load_weights(_hf(sharded))


@pytest.mark.parametrize(("text", "words"), [("{", "config.json"), ("[]", "not a JSON object")])
def test_damaged_config(sharded: Path, text: str, words: str) -> None:
    (sharded / "config.json").write_text(text)
    with pytest.raises(ModelError, match=words):
        load_weights(_hf(sharded))
