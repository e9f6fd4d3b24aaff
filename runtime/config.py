"""The knobs of an engine: one frozen dataclass, every field with its unit and default."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal, get_args

from .errors import InvalidRequest
from .sampling.params import check_float, check_int, check_type

SchedulePolicy = Literal["lpm", "fcfs"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerConfig:
    """How steps are planned. Lengths are in tokens.

    max_running_requests: rows of the device tables: requests that hold KV at one time.
    max_step_tokens: token budget of one step, shared by decodes and prefill chunks.
    max_chunk_len: the most tokens of one request in one step.
    overlap: plan and settle on the CPU while the device computes (depth 1), or not (0).
    radix_cache: share computed prefixes; off, every request computes its whole prompt.
    policy: order of the waiting requests: `lpm` (longest prefix match) or `fcfs`.
    max_passes: a waiting request is passed over by later ones at most so many times.
    new_token_reserve: share of its remaining output that a running request is expected to
        need when another one asks to be admitted; the rest is bet on early ends.
    """

    max_running_requests: int = 64
    max_step_tokens: int = 512
    max_chunk_len: int = 512
    overlap: bool = True
    radix_cache: bool = True
    policy: SchedulePolicy = "lpm"
    max_passes: int = 16
    new_token_reserve: float = 0.5

    def validate(self) -> None:
        """Raise `InvalidRequest` naming the first field that is out of its range."""
        for name in ("max_running_requests", "max_step_tokens", "max_chunk_len", "max_passes"):
            check_int(name, getattr(self, name), 1, 2**31 - 1)
        check_type("overlap", self.overlap, bool)
        check_type("radix_cache", self.radix_cache, bool)
        check_float("new_token_reserve", self.new_token_reserve, 0.0, 1.0)
        if self.policy not in get_args(SchedulePolicy):
            raise InvalidRequest(f"unknown policy {self.policy!r}", param="policy")
        if self.max_step_tokens < self.max_running_requests:
            raise InvalidRequest(
                f"max_step_tokens ({self.max_step_tokens}) must be at least "
                f"max_running_requests ({self.max_running_requests}): each may decode one token",
                param="max_step_tokens",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineConfig:
    """What an engine loads and how much memory it may take.

    model: a catalogue name, a `.gguf` file, a Hugging Face directory, or a hub id.
    cache_dir: where pulled models lie (None: the user's cache directory).
    context_len: the longest sequence in tokens (None: the model's own).
    kv_pool_tokens: slots of the KV pool (None: from `kv_memory_fraction`).
    kv_memory_fraction: share of the memory free after loading, within the control group's
        limit, that the KV pool may take.
    compile_deadline_s: the longest a grammar may compile, in seconds.
    num_threads: torch threads of the device worker (None: torch's own choice).
    """

    model: str = "smollm2"
    cache_dir: str | None = None
    context_len: int | None = None
    kv_pool_tokens: int | None = None
    kv_memory_fraction: float = 0.4
    compile_deadline_s: float = 10.0
    num_threads: int | None = None
    scheduler: SchedulerConfig = SchedulerConfig()

    @classmethod
    def of(cls, **options: object) -> EngineConfig:
        """A configuration from fields of this class and of `SchedulerConfig`, by name."""
        own = {f.name for f in fields(cls)}
        scheduler = {f.name for f in fields(SchedulerConfig)}
        for name in options:
            if name not in own | scheduler:
                raise InvalidRequest(f"unknown engine option {name!r}", param=name)
        nested = {k: v for k, v in options.items() if k in scheduler}
        flat = {k: v for k, v in options.items() if k in own}
        config = cls(**flat)  # type: ignore[arg-type]  # checked by name above, by value below
        if nested:
            inner = replace(config.scheduler, **nested)  # type: ignore[arg-type]
            config = replace(config, scheduler=inner)
        config.validate()
        return config

    def validate(self) -> None:
        """Raise `InvalidRequest` naming the first field that is out of its range."""
        for name in ("context_len", "kv_pool_tokens", "num_threads"):
            value = getattr(self, name)
            if value is not None:
                check_int(name, value, 1, 2**31 - 1)
        check_type("model", self.model, str)
        check_float("kv_memory_fraction", self.kv_memory_fraction, 0.0, 1.0, open_low=True)
        check_float("compile_deadline_s", self.compile_deadline_s, 0.0, 86_400.0, open_low=True)
        self.scheduler.validate()
