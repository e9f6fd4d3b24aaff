"""The shape of a Llama model and where it is read from; knows no tensors and no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from gguf.constants import GGMLQuantizationType

from ..errors import ModelError
from ..hub.gguf_file import GgufFile
from .json_fields import JsonFields

ARCHITECTURE = "llama"
GGUF_ROPE_DIVISORS = "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's RoPE scaling: low frequencies are divided by `factor`, high ones are not.

    A frequency is low if its wavelength is above `original_max_position / low_freq_factor`
    tokens, high if below `original_max_position / high_freq_factor`, interpolated between.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int

    def validate(self, source: str, head_dim: int) -> None:
        for name in ("factor", "low_freq_factor", "original_max_position"):
            _check_positive(source, f"rope {name}", getattr(self, name))
        if not self.low_freq_factor < self.high_freq_factor < math.inf:
            raise ModelError(
                f"{source}: rope high_freq_factor ({self.high_freq_factor}) is not above "
                f"low_freq_factor ({self.low_freq_factor})"
            )


@dataclass(frozen=True, slots=True)
class FrequencyDivisors:
    """RoPE scaling as GGUF files store it: each of the head_dim / 2 frequencies has a divisor."""

    divisors: tuple[float, ...]

    def validate(self, source: str, head_dim: int) -> None:
        if len(self.divisors) != head_dim // 2:
            raise ModelError(
                f"{source}: {len(self.divisors)} rope frequency divisors for "
                f"{head_dim // 2} frequencies"
            )
        for divisor in self.divisors:
            _check_positive(source, "a rope frequency divisor", divisor)


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding: frequency i is `theta ** (-2 i / head_dim)`, then scaled."""

    theta: float
    scaling: Llama3Scaling | FrequencyDivisors | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A Llama model without biases.

    `vocab_size` is the width of the head, `max_position` the
    context length in tokens.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    max_position: int
    tie_word_embeddings: bool

    @classmethod
    def from_gguf(cls, file: GgufFile) -> ModelConfig:
        """The model that a GGUF file describes; `ModelError` names the file and the key."""
        architecture = file.text("general.architecture")
        if architecture != ARCHITECTURE:
            raise ModelError(f"{file.path}: architecture {architecture!r} is not supported")
        _refuse_gguf_variants(file)
        hidden_size = file.integer("llama.embedding_length")
        num_heads = file.integer("llama.attention.head_count")
        config = cls(
            architecture=architecture,
            vocab_size=_gguf_vocab_size(file),
            hidden_size=hidden_size,
            intermediate_size=file.integer("llama.feed_forward_length"),
            num_layers=file.integer("llama.block_count"),
            num_heads=num_heads,
            num_kv_heads=file.integer("llama.attention.head_count_kv", num_heads),
            head_dim=file.integer("llama.attention.key_length", hidden_size // max(num_heads, 1)),
            rms_norm_eps=file.number("llama.attention.layer_norm_rms_epsilon"),
            rope=RopeConfig(file.number("llama.rope.freq_base", 10000.0), _gguf_scaling(file)),
            max_position=file.integer("llama.context_length"),
            tie_word_embeddings="output.weight" not in file.tensors,
        )
        for key in ("llama.attention.value_length", "llama.rope.dimension_count"):
            if file.integer(key, config.head_dim) != config.head_dim:
                raise ModelError(f"{file.path}: {key!r} is not the head size, {config.head_dim}")
        config.validate(str(file.path))
        return config

    @classmethod
    def from_hf(cls, document: Mapping[str, object], source: str = "config.json") -> ModelConfig:
        """The model that a Hugging Face `config.json` describes; `ModelError` names the field."""
        fields = JsonFields(document, source)
        if fields.text("model_type") != ARCHITECTURE:
            fields.refuse("model_type", "is not a supported architecture")
        _refuse_hf_variants(fields)
        hidden_size = fields.integer("hidden_size")
        num_heads = fields.integer("num_attention_heads")
        max_position = fields.integer("max_position_embeddings", 2048)
        config = cls(
            architecture=ARCHITECTURE,
            vocab_size=fields.integer("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=fields.integer("intermediate_size"),
            num_layers=fields.integer("num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=fields.integer("num_key_value_heads", num_heads),
            head_dim=fields.integer("head_dim", hidden_size // max(num_heads, 1)),
            rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
            rope=_hf_rope(fields, max_position),
            max_position=max_position,
            tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        )
        config.validate(source)
        return config

    def validate(self, source: str) -> None:
        """Raise `ModelError`, naming `source` and the field, unless such a model can exist."""
        for name in (
            *("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads"),
            *("num_kv_heads", "head_dim", "max_position", "rms_norm_eps"),
        ):
            _check_positive(source, name, getattr(self, name))
        _check_positive(source, "rope theta", self.rope.theta)
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"{source}: num_heads ({self.num_heads}) is not a multiple of num_kv_heads "
                f"({self.num_kv_heads})"
            )
        if self.head_dim % 2:
            raise ModelError(f"{source}: head_dim ({self.head_dim}) is odd")
        if self.rope.scaling is not None:
            self.rope.scaling.validate(source, self.head_dim)


def _check_positive(source: str, name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ModelError(f"{source}: {name} must be above 0, not {value}")


def _refuse_gguf_variants(file: GgufFile) -> None:
    """GGUF's "llama" covers more than Llama; what the forward pass can't do is refused."""
    if file.integer("split.count", 1) > 1:
        raise ModelError(f"{file.path}: 'split.count': models in several files are not supported")
    if file.integer("llama.expert_count", 0):
        raise ModelError(
            f"{file.path}: 'llama.expert_count': mixtures of experts are not supported"
        )
    scaling = file.text("llama.rope.scaling.type", "none")
    if scaling != "none":
        raise ModelError(f"{file.path}: 'llama.rope.scaling.type': {scaling!r} is not supported")
    if file.number("llama.rope.scale_linear", 1.0) != 1.0:
        raise ModelError(f"{file.path}: 'llama.rope.scale_linear' is not supported")


def _gguf_vocab_size(file: GgufFile) -> int:
    if "llama.vocab_size" in file.metadata:
        return file.integer("llama.vocab_size")
    return len(file.texts("tokenizer.ggml.tokens"))


def _gguf_scaling(file: GgufFile) -> FrequencyDivisors | None:
    tensor = file.tensors.get(GGUF_ROPE_DIVISORS)
    if tensor is None:
        return None
    if tensor.type != GGMLQuantizationType.F32 or len(tensor.shape) != 1:
        raise ModelError(f"{file.path}: tensor {tensor.name!r} must be a vector of type F32")
    return FrequencyDivisors(tuple(file.raw(tensor.name).view("<f4").tolist()))


def _refuse_hf_variants(fields: JsonFields) -> None:
    if fields.text("hidden_act", "silu") != "silu":
        fields.refuse("hidden_act", "must be 'silu'")
    for name in ("attention_bias", "mlp_bias"):
        if fields.flag(name, False):
            fields.refuse(name, "must be false: biases are not supported")
    if "quantization_config" in fields:
        fields.refuse("quantization_config", "must be absent: quantised weights are not supported")


def _hf_rope(fields: JsonFields, max_position: int) -> RopeConfig:
    """RoPE from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling`."""
    rope = fields.nested("rope_parameters" if "rope_parameters" in fields else "rope_scaling")
    theta = rope.number("rope_theta", fields.number("rope_theta", 10000.0))
    if rope.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0)) != 1.0:
        rope.refuse("partial_rotary_factor", "must be 1")
    kind_field = "rope_type" if "rope_type" in rope else "type"
    if "factor" in rope and kind_field not in rope:
        rope.refuse("factor", "needs a 'rope_type' beside it")
    kind = rope.text(kind_field, "default")
    if kind == "default":
        return RopeConfig(theta)
    if kind != "llama3":
        rope.refuse(kind_field, "must be 'default' or 'llama3'")
    return RopeConfig(
        theta,
        Llama3Scaling(
            factor=rope.number("factor"),
            low_freq_factor=rope.number("low_freq_factor"),
            high_freq_factor=rope.number("high_freq_factor"),
            original_max_position=rope.integer("original_max_position_embeddings", max_position),
        ),
    )
