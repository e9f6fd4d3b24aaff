"""What an engine's configuration names, read from disk into memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from espalier.kernels import native
from espalier.kernels.packing import PackedLinear

from .config import EngineConfig
from .errors import ModelError
from .hub.catalog import default_cache_dir
from .hub.source import ModelSource, resolve_model
from .models.config import ModelConfig
from .models.loader import LoadedModel, load_packed_weights, load_weights
from .models.packed import AnyWeights
from .tokenizer.tokenizer import Tokenizer, load_tokenizer

_TORCH_DTYPES = {"auto": torch.float32, "float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Model:
    """What was loaded from disk; the weights are packed if the native kernels compute."""

    config: ModelConfig
    weights: AnyWeights
    tokenizer: Tokenizer


def load_model(config: EngineConfig) -> Model:
    """Load what `config.model` names, for the kernels that will compute. Raises `ModelError`."""
    native_computes = choose_native(config, why_unavailable=native.why_unavailable())
    cache_dir = Path(config.cache_dir) if config.cache_dir else default_cache_dir()
    source = resolve_model(config.model, cache_dir=cache_dir)
    tokenizer = load_tokenizer(source.path)
    loaded = load_for(source, config, native_computes=native_computes)
    if tokenizer.vocab_size > loaded.config.vocab_size:
        raise ModelError(
            f"{source.name}: the tokenizer has {tokenizer.vocab_size} ids, "
            f"the model only {loaded.config.vocab_size}"
        )
    return Model(loaded.config, loaded.weights, tokenizer)


def choose_native(config: EngineConfig, *, why_unavailable: str | None) -> bool:
    """Whether the native kernels compute; torch's do if not. `why_unavailable`: what keeps the
    former from being loaded, if something does.

    Raises `ModelError` if the kernels that are left can't do what the configuration asks.
    """
    if config.kernels == "native" and why_unavailable is not None:
        raise ModelError(
            f"kernels=native: {why_unavailable}; the native kernels are built when espalier is "
            "installed, if there is a C++ compiler"
        )
    if config.kernels != "torch" and why_unavailable is None:
        return True
    dtype = _TORCH_DTYPES.get(config.dtype)
    if dtype is None:
        raise ModelError(
            f"dtype={config.dtype} needs the native kernels, which are built when espalier is "
            "installed, if there is a C++ compiler; torch's know float32 and bfloat16"
        )
    if dtype != _TORCH_DTYPES.get(config.kv_storage):
        raise ModelError(
            f"kv_dtype={config.kv_storage} beside dtype={config.dtype} needs the native kernels: "
            "torch's keep keys and values in the type of the weights"
        )
    return False


def load_for(
    source: ModelSource, config: EngineConfig, *, native_computes: bool
) -> LoadedModel[Tensor] | LoadedModel[PackedLinear]:
    """The weights in the form that the chosen kernels read."""
    if native_computes:
        return load_packed_weights(source, config.dtype)
    return load_weights(source, dtype=_TORCH_DTYPES[config.dtype])
