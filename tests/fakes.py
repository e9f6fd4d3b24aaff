"""Small real parts for tests: a tiny seeded Llama and a vocabulary of bytes."""

from __future__ import annotations

import torch

from espalier.runtime.models.config import ModelConfig, RopeConfig
from espalier.runtime.models.weights import LayerWeights, LlamaWeights
from espalier.runtime.scheduler.sampling_rows import Vocabulary

EOS = 256  # ids 0..255 are bytes, then come control tokens
BYTE_VOCAB = 260


def tiny_config(*, max_position: int = 512) -> ModelConfig:
    return ModelConfig(
        architecture="llama",
        vocab_size=BYTE_VOCAB,
        hidden_size=48,
        intermediate_size=96,
        num_layers=3,
        num_heads=6,
        num_kv_heads=2,
        head_dim=8,
        rms_norm_eps=1e-5,
        rope=RopeConfig(theta=10_000.0),
        max_position=max_position,
        tie_word_embeddings=True,
    )


def tiny_weights(config: ModelConfig, seed: int = 0) -> LlamaWeights[torch.Tensor]:
    """Random weights, large enough that greedy output is varied and near-ties are rare."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        scale = 2.0 / shape[-1] ** 0.5
        return torch.randn(shape, generator=generator).mul(scale)

    width, mlp = config.hidden_size, config.intermediate_size
    q_width = config.num_heads * config.head_dim
    kv_width = config.num_kv_heads * config.head_dim
    layers = tuple(
        LayerWeights(
            attn_norm_D=torch.ones(width),
            qkv_ED=random(q_width + 2 * kv_width, width),
            out_DE=random(width, q_width),
            mlp_norm_D=torch.ones(width),
            gate_up_GD=random(2 * mlp, width),
            down_DF=random(width, mlp),
        )
        for _ in range(config.num_layers)
    )
    embed = random(config.vocab_size, width) * width**0.5
    return LlamaWeights(embed_VD=embed, layers=layers, norm_D=torch.ones(width), head_VD=embed)


def visible_bytes(token_id: int) -> bytes:
    return bytes([token_id]) if token_id < 256 else b""


def byte_vocabulary() -> Vocabulary:
    return Vocabulary(
        width=BYTE_VOCAB, size=BYTE_VOCAB, eos_ids=(EOS,), visible_bytes=visible_bytes
    )


def byte_tokens() -> list[bytes]:
    return [bytes([i]) for i in range(256)] + [f"<control{i}>".encode() for i in range(4)]


class ManualClock:
    """A clock in seconds that goes on only when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now
