"""Writes the default model as a Hugging Face directory in float32, for peers that read no GGUF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging


def export_gguf(gguf: Path, directory: Path) -> None:
    """Dequantise `gguf` into safetensors, with its configuration and tokenizer beside it."""
    progress: Any = logging
    progress.disable_progress_bar()
    loader: Any = AutoModelForCausalLM
    model = loader.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    _forget_quantization(model)
    model.save_pretrained(directory)
    tokenizers: Any = AutoTokenizer
    tokenizer = tokenizers.from_pretrained(gguf.parent, gguf_file=gguf.name)
    _split_digits(tokenizer.backend_tokenizer)
    tokenizer.save_pretrained(directory)


def _forget_quantization(model: Any) -> None:
    """transformers calls what it read from GGUF quantised, though its weights are plain."""
    del model.config.quantization_config, model.hf_quantizer, model.quantization_method
    model.is_quantized = False


def _split_digits(backend: Any) -> None:
    """transformers drops this step of the "smollm" pre-tokenizer: each digit is a token."""
    digits = pre_tokenizers.Digits(individual_digits=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])
