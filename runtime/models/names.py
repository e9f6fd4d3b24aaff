"""Which tensor of a Llama checkpoint goes where, and its shape; knows no bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from .config import ModelConfig

TopPart = Literal["embed", "norm", "head"]
LayerPart = Literal["attn_norm", "q", "k", "v", "out", "mlp_norm", "gate", "up", "down"]
_TOP_PARTS: tuple[TopPart, ...] = ("embed", "norm", "head")
_LAYER_PARTS: tuple[LayerPart, ...] = (
    *("attn_norm", "q", "k", "v", "out"),
    *("mlp_norm", "gate", "up", "down"),
)


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a format names tensors; `{}` stands for the layer. `harmless` names carry nothing
    that the configuration does not say. With `interleaved`, RoPE turns neighbouring rows of a
    query or key head together, not those half a head apart."""

    top: dict[TopPart, str]
    layer: dict[LayerPart, str]
    harmless: re.Pattern[str]
    interleaved: bool


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor that a checkpoint must have. `num_interleaved_heads` is 0 if its rows are in the
    order in which the forward pass takes them."""

    name: str
    shape: tuple[int, ...]
    part: TopPart | LayerPart
    layer: int = 0
    num_interleaved_heads: int = 0


GGUF = Spelling(
    top={"embed": "token_embd.weight", "norm": "output_norm.weight", "head": "output.weight"},
    layer={
        "attn_norm": "blk.{}.attn_norm.weight",
        "q": "blk.{}.attn_q.weight",
        "k": "blk.{}.attn_k.weight",
        "v": "blk.{}.attn_v.weight",
        "out": "blk.{}.attn_output.weight",
        "mlp_norm": "blk.{}.ffn_norm.weight",
        "gate": "blk.{}.ffn_gate.weight",
        "up": "blk.{}.ffn_up.weight",
        "down": "blk.{}.ffn_down.weight",
    },
    harmless=re.compile(r"rope_freqs\.weight|blk\.\d+\.attn_rot_embd(\.weight)?"),
    interleaved=True,
)

HUGGING_FACE = Spelling(
    top={
        "embed": "model.embed_tokens.weight",
        "norm": "model.norm.weight",
        "head": "lm_head.weight",
    },
    layer={
        "attn_norm": "model.layers.{}.input_layernorm.weight",
        "q": "model.layers.{}.self_attn.q_proj.weight",
        "k": "model.layers.{}.self_attn.k_proj.weight",
        "v": "model.layers.{}.self_attn.v_proj.weight",
        "out": "model.layers.{}.self_attn.o_proj.weight",
        "mlp_norm": "model.layers.{}.post_attention_layernorm.weight",
        "gate": "model.layers.{}.mlp.gate_proj.weight",
        "up": "model.layers.{}.mlp.up_proj.weight",
        "down": "model.layers.{}.mlp.down_proj.weight",
    },
    harmless=re.compile(r"(.*\.)?rotary_emb\.inv_freq"),
    interleaved=False,
)


def plan_tensors(config: ModelConfig, spelling: Spelling) -> Iterator[PlannedTensor]:
    """Every tensor that a checkpoint of this model has; no head if it is tied."""
    shapes = _shapes(config)
    for part in _TOP_PARTS:
        if part != "head" or not config.tie_word_embeddings:
            yield PlannedTensor(spelling.top[part], shapes[part], part)
    interleaved: dict[LayerPart, int] = {}
    if spelling.interleaved:
        interleaved = {"q": config.num_heads, "k": config.num_kv_heads}
    for layer in range(config.num_layers):
        for layer_part in _LAYER_PARTS:
            yield PlannedTensor(
                spelling.layer[layer_part].format(layer),
                shapes[layer_part],
                layer_part,
                layer,
                interleaved.get(layer_part, 0),
            )


def _shapes(config: ModelConfig) -> dict[TopPart | LayerPart, tuple[int, ...]]:
    hidden, mlp = config.hidden_size, config.intermediate_size
    queries = config.num_heads * config.head_dim
    keys = config.num_kv_heads * config.head_dim
    return {
        "embed": (config.vocab_size, hidden),
        "norm": (hidden,),
        "head": (config.vocab_size, hidden),
        "attn_norm": (hidden,),
        "q": (queries, hidden),
        "k": (keys, hidden),
        "v": (keys, hidden),
        "out": (hidden, queries),
        "mlp_norm": (hidden,),
        "gate": (mlp, hidden),
        "up": (mlp, hidden),
        "down": (hidden, mlp),
    }
