"""Memory while loading: resident memory of a fresh process stays near the final weights."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save
from transformers import LlamaConfig

from espalier.runtime.errors import ModelError
from espalier.runtime.hub.gguf_file import read_gguf
from espalier.runtime.hub.source import ModelSource, resolve_model
from espalier.runtime.models.config import ModelConfig
from espalier.runtime.models.names import HUGGING_FACE, plan_tensors

_MEASURE = """
import sys
from pathlib import Path
from espalier.runtime.hub.source import ModelSource
from espalier.runtime.models.loader import load_weights

def status_kib(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))

Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from the present
before = status_kib("VmRSS")
loaded = load_weights(ModelSource(sys.argv[1], Path(sys.argv[2]), ""))
print((status_kib("VmHWM") - before) * 1024)
"""


def _loading_peak_nbytes(source: ModelSource) -> int:
    """How far resident memory grows above its start while a fresh process loads the model."""
    command = [sys.executable, "-c", _MEASURE, source.kind, str(source.path)]
    return int(subprocess.run(command, check=True, capture_output=True, timeout=250).stdout)


def test_hugging_face_f32(tmp_path: Path) -> None:
    """The stored bytes are as many as the weights: keeping them mapped would double memory."""
    document = LlamaConfig(
        vocab_size=4096,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=3,
        num_attention_heads=16,
        tie_word_embeddings=True,
    )
    (tmp_path / "config.json").write_text(document.to_json_string())
    config = ModelConfig.from_hf(document.to_diff_dict())
    state = {tensor.name: torch.ones(tensor.shape) for tensor in plan_tensors(config, HUGGING_FACE)}
    (tmp_path / "model.safetensors").write_bytes(save(state))
    nbytes = sum(tensor.nbytes for tensor in state.values())
    assert nbytes > 150e6
    assert _loading_peak_nbytes(ModelSource("hf", tmp_path, "big")) < 1.3 * nbytes


def test_default_model() -> None:
    try:
        source = resolve_model("smollm2")
    except ModelError as error:
        pytest.skip(str(error))
    tensors = read_gguf(source.path).tensors.values()
    nbytes = sum(math.prod(tensor.shape) * 4 for tensor in tensors)
    assert _loading_peak_nbytes(source) < 1.3 * nbytes
