"""Model configurations from config.json and GGUF metadata: what is read, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from gguf import GGUFWriter
from transformers import LlamaConfig

from espalier.runtime.errors import ModelError
from espalier.runtime.hub.gguf_file import GgufFile, read_gguf
from espalier.runtime.models.config import (
    FrequencyDivisors,
    Llama3Scaling,
    ModelConfig,
    RopeConfig,
)

_LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def _document(**changes: object) -> dict[str, object]:
    return {
        "model_type": "llama",
        "vocab_size": 128,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        **changes,
    }


_EXPECTED = ModelConfig(
    architecture="llama",
    vocab_size=128,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    rms_norm_eps=1e-5,
    rope=RopeConfig(10000.0),
    max_position=512,
    tie_word_embeddings=False,
)


def test_config_json() -> None:
    assert ModelConfig.from_hf(_document()) == _EXPECTED


def test_config_written_by_transformers() -> None:
    written = LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
    )
    assert ModelConfig.from_hf(written.to_diff_dict()) == _EXPECTED
    assert ModelConfig.from_hf(written.to_dict()) == _EXPECTED


def test_defaults_and_explicit_fields() -> None:
    document = _document(head_dim=16, tie_word_embeddings=True, rms_norm_eps=None)
    del document["num_key_value_heads"], document["max_position_embeddings"]
    config = ModelConfig.from_hf(document)
    assert (config.head_dim, config.num_kv_heads, config.max_position) == (16, 4, 2048)
    assert config.tie_word_embeddings
    assert config.rms_norm_eps == 1e-6


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **_LLAMA3}},
        {"rope_theta": 500000, "rope_scaling": {"rope_type": "llama3", **_LLAMA3}},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", **_LLAMA3}},
    ],
)
def test_llama3_rope_in_every_spelling(fields: dict[str, object]) -> None:
    expected = RopeConfig(5e5, Llama3Scaling(8.0, 1.0, 4.0, 8192))
    assert ModelConfig.from_hf(_document(**fields)).rope == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_theta": 2e4},
        {"rope_theta": 2e4, "rope_scaling": None},
        {"rope_theta": 2e4, "rope_scaling": {"rope_type": "default"}},
        {"rope_parameters": {"rope_theta": 2e4, "rope_type": "default"}},
        {"rope_parameters": {"rope_theta": 2e4}},
    ],
)
def test_plain_rope_in_every_spelling(fields: dict[str, object]) -> None:
    assert ModelConfig.from_hf(_document(**fields)).rope == RopeConfig(2e4)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "gpt2"}, "'model_type' is 'gpt2'"),
        ({"model_type": None}, "'model_type' is missing"),
        ({"hidden_act": "gelu"}, "'hidden_act' is 'gelu'"),
        ({"attention_bias": True}, "'attention_bias' is True"),
        ({"mlp_bias": True}, "'mlp_bias' is True"),
        ({"quantization_config": {"bits": 4}}, "'quantization_config'"),
        ({"hidden_size": None}, "'hidden_size' is missing"),
        ({"hidden_size": "32"}, "'hidden_size' is '32'"),
        ({"vocab_size": True}, "'vocab_size' is True"),
        ({"vocab_size": 128.0}, "'vocab_size' is 128.0"),
        ({"tie_word_embeddings": 1}, "'tie_word_embeddings' is 1"),
        ({"num_hidden_layers": 0}, "num_layers must be above 0"),
        ({"num_attention_heads": 0}, "num_heads must be above 0"),
        ({"num_key_value_heads": 0}, "num_kv_heads must be above 0"),
        ({"num_key_value_heads": 3}, "not a multiple"),
        ({"head_dim": 7}, "head_dim .7. is odd"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps must be above 0"),
        ({"rope_theta": float("inf")}, "rope theta must be above 0"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling: 'type' is 'linear'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "'rope_type' is 'yarn'"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "rope_parameters: 'rope_type'"),
        ({"rope_parameters": [1]}, "'rope_parameters' is .1.; it must be an object"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "'partial_rotary_factor' is 0.5"),
        ({"rope_scaling": {"type": "llama3"}}, "'factor' is missing"),
        ({"rope_scaling": {"factor": 2.0}}, "rope_scaling: 'factor' is 2.0"),
        ({"rope_scaling": {"type": "llama3", **_LLAMA3, "factor": 0}}, "rope factor must be"),
        (
            {"rope_scaling": {"type": "llama3", **_LLAMA3, "high_freq_factor": 1.0}},
            "high_freq_factor",
        ),
    ],
)
def test_what_is_not_supported_is_named(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        ModelConfig.from_hf(_document(**changes), "somewhere/config.json")
    assert str(caught.value).startswith("somewhere/config.json")


def _gguf(
    path: Path,
    *,
    architecture: str = "llama",
    drop: str = "",
    num_files: int = 1,
    divisors: np.ndarray[Any, Any] | None = None,
    **changes: object,
) -> GgufFile:
    values: dict[str, object] = {
        "vocab_size": 128,
        "embedding_length": 32,
        "feed_forward_length": 48,
        "block_count": 2,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 2.0**-16,
        "context_length": 512,
        **{name.replace("__", "."): value for name, value in changes.items()},
    }
    writer = GGUFWriter(path, architecture)
    for name, value in values.items():
        if name == drop:
            continue
        if isinstance(value, int):
            writer.add_uint32(f"llama.{name}", value)
        elif isinstance(value, float):
            writer.add_float32(f"llama.{name}", value)
        elif isinstance(value, str):
            writer.add_string(f"llama.{name}", value)
        elif isinstance(value, list):
            writer.add_array(f"llama.{name}", cast("list[int]", value))
    writer.add_uint16("split.count", num_files)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b", "c"])
    writer.add_tensor("output.weight", np.zeros((128, 32), np.float32))
    if divisors is not None:
        writer.add_tensor("rope_freqs.weight", divisors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read_gguf(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "some.gguf"


def test_gguf_metadata(path: Path) -> None:
    config = ModelConfig.from_gguf(_gguf(path, rope__freq_base=5e5))
    assert config.rope == RopeConfig(5e5)
    assert config.rms_norm_eps == 2.0**-16
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (128, 32, 48)
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (2, 4, 2)
    assert (config.head_dim, config.max_position) == (8, 512)
    assert not config.tie_word_embeddings


def test_gguf_defaults(path: Path) -> None:
    assert ModelConfig.from_gguf(_gguf(path, drop="vocab_size")).vocab_size == 3
    assert ModelConfig.from_gguf(_gguf(path, drop="attention.head_count_kv")).num_kv_heads == 4
    wide = _gguf(path, attention__key_length=16, attention__value_length=16)
    assert ModelConfig.from_gguf(wide).head_dim == 16


def test_gguf_rope_divisors(path: Path) -> None:
    divisors = np.array([1.0, 1.0, 2.5, 8.0], np.float32)
    config = ModelConfig.from_gguf(_gguf(path, divisors=divisors))
    assert config.rope.scaling == FrequencyDivisors((1.0, 1.0, 2.5, 8.0))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architecture": "mamba"}, "architecture 'mamba'"),
        ({"num_files": 2}, "'split.count'"),
        ({"expert_count": 8}, "'llama.expert_count'"),
        ({"rope__scaling__type": "yarn"}, "'yarn'"),
        ({"rope__scale_linear": 2.0}, "'llama.rope.scale_linear'"),
        ({"rope__dimension_count": 4}, "'llama.rope.dimension_count'"),
        ({"attention__value_length": 4}, "'llama.attention.value_length'"),
        ({"attention__head_count": [4, 4]}, "'llama.attention.head_count' must be an integer"),
        ({"attention__head_count": 0}, "num_heads must be above 0"),
        ({"drop": "block_count"}, "'llama.block_count'"),
        ({"divisors": np.ones(3, np.float32)}, "3 rope frequency divisors"),
        ({"divisors": np.zeros(4, np.float32)}, "divisor must be above 0"),
        ({"divisors": np.ones(4, np.float16)}, "'rope_freqs.weight'"),
    ],
)
def test_gguf_refusals_name_the_key(path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        ModelConfig.from_gguf(_gguf(path, **changes))
    assert str(caught.value).startswith(str(path))
