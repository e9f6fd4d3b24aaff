"""What an engine's configuration names, read from disk into memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from .config import EngineConfig
from .errors import ModelError
from .hub.catalog import default_cache_dir
from .hub.source import resolve_model
from .models.config import ModelConfig
from .models.loader import load_weights
from .models.weights import LlamaWeights
from .tokenizer.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True, slots=True)
class Model:
    """What was loaded from disk."""

    config: ModelConfig
    weights: LlamaWeights
    tokenizer: Tokenizer


def load_model(config: EngineConfig) -> Model:
    """Load what `config.model` names. Raises `ModelError`."""
    cache_dir = Path(config.cache_dir) if config.cache_dir else default_cache_dir()
    source = resolve_model(config.model, cache_dir=cache_dir)
    tokenizer = load_tokenizer(source.path)
    model_config, weights = load_weights(source, dtype=torch.float32)
    if tokenizer.vocab_size > model_config.vocab_size:
        raise ModelError(
            f"{source.name}: the tokenizer has {tokenizer.vocab_size} ids, "
            f"the model only {model_config.vocab_size}"
        )
    return Model(model_config, weights, tokenizer)
