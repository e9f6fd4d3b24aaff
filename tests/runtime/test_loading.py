"""Which kernels compute, and in what their weights are loaded: decided before a file is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Type
from torch import Tensor

from espalier.kernels.packing import PackedLinear
from espalier.runtime.config import EngineConfig
from espalier.runtime.errors import InvalidRequest, ModelError
from espalier.runtime.hub.source import ModelSource
from espalier.runtime.loading import choose_native, load_for
from tests.checkpoints import tiny_llama, write_gguf


@pytest.mark.parametrize(
    ("kernels", "available", "native"),
    [
        ("auto", True, True),
        ("auto", False, False),
        ("native", True, True),
        ("torch", True, False),
        ("torch", False, False),
    ],
)
def test_native_kernels_compute_where_there_are_any(
    kernels: str, available: bool, native: bool
) -> None:
    why_unavailable = None if available else "no module"
    config = EngineConfig.of(kernels=kernels)
    assert choose_native(config, why_unavailable=why_unavailable) == native


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kernels": "native"}, "kernels=native: no module; the native kernels are built when"),
        ({"dtype": "int8"}, "dtype=int8 needs the native kernels"),
        ({"dtype": "q4", "kernels": "torch"}, "dtype=q4 needs the native kernels"),
        ({"kv_dtype": "int8"}, "kv_dtype=int8 beside dtype=auto needs the native"),
        ({"kv_dtype": "bfloat16"}, "kv_dtype=bfloat16 beside dtype=auto needs"),
        ({"dtype": "bfloat16", "kv_dtype": "float32"}, "kv_dtype=float32 beside dtype=bfloat16"),
    ],
    ids=str,
)
def test_what_torch_cannot_do_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        choose_native(EngineConfig.of(**options), why_unavailable="no module")
    if options.get("kernels") != "torch":
        assert choose_native(EngineConfig.of(**options), why_unavailable=None)


@pytest.mark.parametrize(
    ("dtype", "kv_dtype", "storage"),
    [
        ("auto", "auto", "float32"),
        ("q4", "auto", "float32"),
        ("bfloat16", "auto", "bfloat16"),
        ("bfloat16", "float32", "float32"),
        ("int8", "int8", "int8"),
    ],
)
def test_the_type_of_keys_and_values(dtype: str, kv_dtype: str, storage: str) -> None:
    assert EngineConfig.of(dtype=dtype, kv_dtype=kv_dtype).kv_storage == storage


@pytest.mark.parametrize("name", ["dtype", "kv_dtype", "kernels"])
def test_unknown_choices_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"{name} must be one of auto, ") as caught:
        EngineConfig.of(**{name: "float64"})
    assert caught.value.param == name


@pytest.fixture
def source(tmp_path: Path) -> ModelSource:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, tiny_llama(tied=True).state_dict(), matrix_type=Type.Q8_0, tied=True)
    return ModelSource("gguf", path, "tiny")


@pytest.mark.parametrize(
    ("dtype", "loaded_as"),
    [("auto", torch.float32), ("float32", torch.float32), ("bfloat16", torch.bfloat16)],
)
def test_torch_gets_tensors(source: ModelSource, dtype: str, loaded_as: torch.dtype) -> None:
    _, weights = load_for(source, EngineConfig.of(dtype=dtype), native_computes=False)
    assert isinstance(weights.embed_VD, Tensor)
    assert weights.embed_VD.dtype == loaded_as


@pytest.mark.parametrize(("dtype", "format"), [("auto", "q8"), ("q4", "q4_1"), ("float32", "q8")])
def test_native_kernels_get_packed_matrices(source: ModelSource, dtype: str, format: str) -> None:
    _, weights = load_for(source, EngineConfig.of(dtype=dtype), native_computes=True)
    linear = weights.layers[0].out_DE
    assert isinstance(linear, PackedLinear)
    assert linear.matrices[0].format == format
