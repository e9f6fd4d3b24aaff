"""Memory while loading: resident memory of a fresh process stays near the final weights."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save
from transformers import LlamaConfig

from espalier.runtime.config import WeightDtype
from espalier.runtime.errors import ModelError
from espalier.runtime.hub.gguf_file import read_gguf
from espalier.runtime.hub.source import ModelSource, resolve_model
from espalier.runtime.models.config import ModelConfig
from espalier.runtime.models.names import HUGGING_FACE, plan_tensors

_MEASURE = """
import sys
from pathlib import Path
import torch
from espalier.runtime.hub.source import ModelSource
from espalier.runtime.models.loader import load_packed_weights, load_weights

def status(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))

kind, path, dtype = sys.argv[1:]
source = ModelSource(kind, Path(path), "")
torch.set_num_threads(1)
Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from the present
before, num_threads = status("VmRSS"), status("Threads")
loaded = load_packed_weights(source, dtype) if dtype else load_weights(source)
print((status("VmHWM") - before) * 1024, status("Threads") - num_threads)
"""


def _loading_peak_nbytes(source: ModelSource, packed_as: WeightDtype | None = None) -> int:
    """How far resident memory grows above its start while a fresh process loads the model.

    The process may use one thread only, as the fork server does, and must start no other.
    """
    command = [sys.executable, "-c", _MEASURE, source.kind, str(source.path), packed_as or ""]
    output = subprocess.run(command, check=True, capture_output=True, timeout=250).stdout
    peak_nbytes, num_new_threads = map(int, output.split())
    assert num_new_threads == 0
    return peak_nbytes


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> ModelSource:
    """A float32 model whose stored bytes are as many as its weights."""
    path = tmp_path_factory.mktemp("big")
    document = LlamaConfig(
        vocab_size=4096,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=3,
        num_attention_heads=16,
        tie_word_embeddings=True,
    )
    (path / "config.json").write_text(document.to_json_string())
    config = ModelConfig.from_hf(document.to_diff_dict())
    state = {tensor.name: torch.ones(tensor.shape) for tensor in plan_tensors(config, HUGGING_FACE)}
    (path / "model.safetensors").write_bytes(save(state))
    assert sum(tensor.nbytes for tensor in state.values()) > 150e6
    return ModelSource("hf", path, "big")


def _stored_nbytes(source: ModelSource) -> int:
    return sum(path.stat().st_size for path in source.path.glob("*.safetensors"))


def test_hugging_face_f32(big: ModelSource) -> None:
    """Keeping the stored bytes mapped would double memory."""
    assert _loading_peak_nbytes(big) < 1.3 * _stored_nbytes(big)


@pytest.mark.parametrize(("dtype", "share"), [("auto", 1.0), ("bfloat16", 0.5), ("q4", 0.25)])
def test_packed_hugging_face_f32(big: ModelSource, dtype: WeightDtype, share: float) -> None:
    """`share`: no less than packing makes of the bytes; 30 MB are for blocks of rows."""
    assert _loading_peak_nbytes(big, dtype) < share * _stored_nbytes(big) + 30e6


def test_default_model() -> None:
    try:
        source = resolve_model("smollm2")
    except ModelError as error:
        pytest.skip(str(error))
    tensors = read_gguf(source.path).tensors.values()
    nbytes = sum(math.prod(tensor.shape) * 4 for tensor in tensors)
    assert _loading_peak_nbytes(source) < 1.3 * nbytes


def test_packed_default_model() -> None:
    """40 MB are for the file's metadata, the vocabulary above all, and for blocks of rows."""
    try:
        source = resolve_model("smollm2")
    except ModelError as error:
        pytest.skip(str(error))
    nbytes = sum(tensor.nbytes for tensor in read_gguf(source.path).tensors.values())
    assert _loading_peak_nbytes(source, "auto") < nbytes + 40e6
