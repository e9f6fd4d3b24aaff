"""The knobs of an engine and of its server: frozen dataclasses, one for each owner.

Each field says what it is; command line flags derive from the fields (`options_of`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from espalier.radix.eviction import EvictionPolicy

from .errors import InvalidRequest
from .options import configured, option
from .sampling.params import check_float, check_int, check_type

SchedulePolicy = Literal["lpm", "fcfs", "priority", "program"]
LogLevel = Literal["debug", "info", "warning", "error"]
WeightDtype = Literal["auto", "float32", "bfloat16", "int8", "q4"]
KVStorage = Literal["float32", "bfloat16", "int8"]
KVDtype = Literal["auto", KVStorage]
KernelChoice = Literal["auto", "native", "torch"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerConfig:
    """How steps are planned."""

    max_running_requests: int = option(
        64, "rows of the device tables: requests that hold KV at one time"
    )
    max_step_tokens: int = option(
        128, "budget of one step, shared by decodes and prefill chunks", value="tokens"
    )
    max_chunk_len: int = option(
        128,
        "the most of one request in one step",
        value="tokens",
        flag="--chunked-prefill-size",
    )
    overlap: bool = option(
        True,
        "plan and settle on the CPU while the device computes",
        flag="--disable-overlap-schedule",
    )
    max_overlap_tokens: int = option(
        64,
        "a larger step ends before the next one is planned: it gains nothing from overlap, and "
        "an abort that came meanwhile need not wait for another one",
        value="tokens",
    )
    jump_forward: bool = option(
        True,
        "append what a constraint forces without sampling it, token by token as it is read",
        flag="--disable-jump-forward",
    )
    radix_cache: bool = option(True, "share computed prefixes between requests")
    eviction: EvictionPolicy = option(
        "lru",
        "what leaves the full cache first: the least recently used, the least often used, what "
        "is cheap to compute again for its size, or what only low priorities have used",
        flag="--radix-eviction-policy",
    )
    policy: SchedulePolicy = option(
        "lpm",
        "order of the waiting requests: longest prefix match, first come first served, highest "
        "priority, or the program with the fewest stages left",
        flag="--schedule-policy",
    )
    max_passes: int = option(
        16,
        "how often later requests may pass over a waiting one; under the policy priority, when "
        "it does not fit",
    )
    preemption_gap: int | None = option(
        None,
        "under the policy priority: a waiting request takes the place of a running one whose "
        "priority is lower by so much",
        value="difference",
        unset="never",
    )
    slo_ttft_s: float | None = option(
        None,
        "the time to first token to keep: a request that would miss it is refused with 429",
        value="seconds",
        unset="no request is refused",
    )
    slo_itl_s: float | None = option(
        None,
        "the time between two tokens to keep: prompts are computed in chunks that do not make "
        "a step longer while others decode",
        value="seconds",
        unset="chunks go by the budget of a step alone",
    )
    fair_share: str | None = option(
        None,
        "have tenants take turns by what is computed for them: name=weight pairs with commas "
        "between them; * is for tenants without one, who weigh 1 if it is not there",
        value="weights",
        unset="all requests are one tenant's",
    )
    max_leased_share: float = option(
        0.25,
        "how much of the KV pool may be leased by requests that have ended; leases yield to "
        "requests that would go without slots",
        value="share",
    )
    new_token_reserve: float = option(
        0.5,
        "how much of its remaining output a running request is expected to need when another "
        "one asks to be admitted; the rest is bet on early ends",
        value="share",
    )

    @property
    def tenant_weights(self) -> dict[str, float] | None:
        """`fair_share` by tenant; None if there are no tenants."""
        return None if self.fair_share is None else _weights(self.fair_share)

    def validate(self) -> None:
        """Raise `InvalidRequest` naming the first field that is out of its range."""
        for name in ("max_running_requests", "max_step_tokens", "max_chunk_len", "max_passes"):
            check_int(name, getattr(self, name), 1, 2**31 - 1)
        check_int("max_overlap_tokens", self.max_overlap_tokens, 0, 2**31 - 1)
        check_type("overlap", self.overlap, bool)
        check_type("jump_forward", self.jump_forward, bool)
        check_type("radix_cache", self.radix_cache, bool)
        check_float("max_leased_share", self.max_leased_share, 0.0, 1.0)
        check_float("new_token_reserve", self.new_token_reserve, 0.0, 1.0)
        if self.preemption_gap is not None:
            check_int("preemption_gap", self.preemption_gap, 1, 2**31 - 1)
        for name in ("slo_ttft_s", "slo_itl_s"):
            value = getattr(self, name)
            if value is not None:
                check_float(name, value, 0.0, 86_400.0, open_low=True)
        _check_text("fair_share", self.fair_share)
        self.tenant_weights  # noqa: B018  parses them
        _check_choice("eviction", self.eviction, get_args(EvictionPolicy))
        _check_choice("policy", self.policy, get_args(SchedulePolicy))
        if self.max_step_tokens < self.max_running_requests:
            raise InvalidRequest(
                f"max_step_tokens ({self.max_step_tokens}) must be at least "
                f"max_running_requests ({self.max_running_requests}): each may decode one token",
                param="max_step_tokens",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineConfig:
    """What an engine loads and how much memory it may take."""

    model: str = option(
        "smollm2",
        "a catalogue name, a .gguf file, a Hugging Face directory, or a hub id",
        value="model",
    )
    cache_dir: str | None = option(
        None, "where pulled models lie", value="dir", unset="the user's cache directory"
    )
    dtype: WeightDtype = option(
        "auto",
        "the weights: auto keeps them as they are stored, the blocks of a GGUF file of Q4_0, Q4_1 "
        "and Q8_0 too; what is stored in other types becomes float32, which loses nothing; int8 "
        "and q4 quantise what is not quantised",
    )
    kv_dtype: KVDtype = option(
        "auto", "keys and values: auto is bfloat16 with bfloat16 weights, else float32"
    )
    kernels: KernelChoice = option(
        "auto",
        "who computes: auto is the native kernels where they were built at installation, else "
        "torch, whose weights are float32 or bfloat16",
    )
    context_len: int | None = option(
        None,
        "the longest sequence, prompt and output together",
        value="tokens",
        unset="the model's own",
        flag="--context-length",
    )
    kv_pool_tokens: int | None = option(
        None,
        "slots of the KV pool",
        value="tokens",
        unset="from --kv-memory-fraction",
        flag="--max-total-tokens",
    )
    kv_memory_fraction: float = option(
        0.4,
        "how much of the memory that is free after loading, within the control group's limit, "
        "the KV pool may take",
        value="share",
    )
    compile_deadline_s: float = option(
        5.0,
        "the longest that a grammar may compile",
        value="seconds",
        flag="--grammar-compile-deadline",
    )
    num_threads: int | None = option(
        None, "threads that compute", unset="one for each core of this process"
    )
    scheduler: SchedulerConfig = SchedulerConfig()

    @property
    def kv_storage(self) -> KVStorage:
        """The type of keys and values, with "auto" resolved."""
        if self.kv_dtype == "auto":
            return "bfloat16" if self.dtype == "bfloat16" else "float32"
        return self.kv_dtype

    @classmethod
    def of(cls, **options: object) -> EngineConfig:
        """A valid configuration from fields of this class and of `SchedulerConfig`, by name."""
        config = configured(cls, options)
        config.validate()
        return config

    def validate(self) -> None:
        """Raise `InvalidRequest` naming the first field that is out of its range."""
        for name in ("context_len", "kv_pool_tokens", "num_threads"):
            value = getattr(self, name)
            if value is not None:
                check_int(name, value, 1, 2**31 - 1)
        check_type("model", self.model, str)
        _check_text("cache_dir", self.cache_dir)
        _check_choice("dtype", self.dtype, get_args(WeightDtype))
        _check_choice("kv_dtype", self.kv_dtype, get_args(KVDtype))
        _check_choice("kernels", self.kernels, get_args(KernelChoice))
        check_float("kv_memory_fraction", self.kv_memory_fraction, 0.0, 1.0, open_low=True)
        check_float("compile_deadline_s", self.compile_deadline_s, 0.0, 86_400.0, open_low=True)
        check_type("scheduler", self.scheduler, SchedulerConfig)
        self.scheduler.validate()


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerConfig:
    """How the processes serve an engine over HTTP."""

    host: str = option("127.0.0.1", "where HTTP listens", value="address")
    port: int = option(30000, "where HTTP listens; 0 takes a free port")
    served_model_name: str | None = option(
        None, "what clients call the model", value="name", unset="the model's own name"
    )
    api_key: str | None = option(
        None, "what clients must send as a bearer token", value="key", unset="nothing"
    )
    max_queued_requests: int = option(
        1024, "sequences that may be open at one time; more are refused with 503"
    )
    max_body_bytes: int = option(16 << 20, "the longest HTTP request body", value="bytes")
    drain_timeout_s: float = option(
        30.0,
        "how long open requests may go on once the server is told to stop",
        value="seconds",
    )
    watchdog_timeout_s: float = option(
        120.0, "a process that does not answer for so long is replaced", value="seconds"
    )
    kv_events: str | None = option(
        None,
        "where to publish what the KV cache holds, as it changes (docs/kv-events.md): "
        "tcp://address:port or ipc://path",
        value="endpoint",
        unset="nothing is published",
    )
    otlp_endpoint: str | None = option(
        None,
        "the OTLP/HTTP collector that gets a trace of each request: its base URL",
        value="url",
        unset="no traces",
    )
    log_level: LogLevel = option("warning", "of all processes, to standard error")
    engine: EngineConfig = EngineConfig()

    @classmethod
    def of(cls, **options: object) -> ServerConfig:
        """A valid configuration from fields of this class, of `EngineConfig` and of
        `SchedulerConfig`, by name."""
        config = configured(cls, options)
        config.validate()
        return config

    def validate(self) -> None:
        """Raise `InvalidRequest` naming the first field that is out of its range."""
        check_type("host", self.host, str)
        check_int("port", self.port, 0, 65535)
        _check_text("served_model_name", self.served_model_name)
        _check_text("api_key", self.api_key)
        check_int("max_queued_requests", self.max_queued_requests, 1, 2**31 - 1)
        check_int("max_body_bytes", self.max_body_bytes, 1, 2**31 - 1)
        check_float("drain_timeout_s", self.drain_timeout_s, 0.0, 86_400.0)
        check_float("watchdog_timeout_s", self.watchdog_timeout_s, 1.0, 86_400.0)
        _check_text("kv_events", self.kv_events)
        if self.kv_events is not None and not self.kv_events.startswith(("tcp://", "ipc://")):
            raise InvalidRequest(
                f"kv_events must be tcp://address:port or ipc://path, not {self.kv_events!r}",
                param="kv_events",
            )
        _check_text("otlp_endpoint", self.otlp_endpoint)
        _check_choice("log_level", self.log_level, get_args(LogLevel))
        check_type("engine", self.engine, EngineConfig)
        self.engine.validate()


def _check_text(name: str, value: object) -> None:
    if value is not None:
        check_type(name, value, str)


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidRequest(
            f"{name} must be one of {', '.join(choices)}, not {value!r}", param=name
        )


def _weights(text: str) -> dict[str, float]:
    weights = dict[str, float]()
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, equals, number = pair.rpartition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = 0.0
        if not equals or not 0.0 < weight < float("inf"):
            raise InvalidRequest(
                f"fair_share must be name=weight pairs with commas between them and weights "
                f"above 0, not {pair!r}",
                param="fair_share",
            )
        weights[name] = weight
    return weights
