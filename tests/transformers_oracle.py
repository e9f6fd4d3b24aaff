"""transformers' Llama with our weights: the independent implementation that ids must equal."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from espalier.runtime.models.config import ModelConfig
from espalier.runtime.models.weights import LlamaWeights


def transformers_llama(config: ModelConfig, weights: LlamaWeights[torch.Tensor]) -> Any:
    """An evaluating float32 `LlamaForCausalLM`; unscaled RoPE only."""
    assert config.rope.scaling is None
    settings: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope.theta},
        "max_position_embeddings": config.max_position,
        "tie_word_embeddings": config.tie_word_embeddings,
    }
    model: Any = LlamaForCausalLM(LlamaConfig(**settings))
    state = {"model.embed_tokens.weight": weights.embed_VD, "model.norm.weight": weights.norm_D}
    if not config.tie_word_embeddings:
        state["lm_head.weight"] = weights.head_VD
    q_width, kv_width = (
        config.num_heads * config.head_dim,
        config.num_kv_heads * config.head_dim,
    )
    for index, layer in enumerate(weights.layers):
        q, k, v = layer.qkv_ED.tensor_split([q_width, q_width + kv_width])
        gate, up = layer.gate_up_GD.chunk(2)
        prefix = f"model.layers.{index}."
        state |= {
            prefix + "input_layernorm.weight": layer.attn_norm_D,
            prefix + "self_attn.q_proj.weight": q,
            prefix + "self_attn.k_proj.weight": k,
            prefix + "self_attn.v_proj.weight": v,
            prefix + "self_attn.o_proj.weight": layer.out_DE,
            prefix + "post_attention_layernorm.weight": layer.mlp_norm_D,
            prefix + "mlp.gate_proj.weight": gate,
            prefix + "mlp.up_proj.weight": up,
            prefix + "mlp.down_proj.weight": layer.down_DF,
        }
    missing = model.load_state_dict(state, strict=False)
    assert not missing.unexpected_keys
    assert set(missing.missing_keys) <= {"lm_head.weight"}
    model.eval()
    return model.to(torch.float32)
