"""What well-behaved clients ask for: seeded bodies for the three routes, and what must come back.

Knows no sockets.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Json = dict[str, object]

NATIVE, TEXT, CHAT = "/generate", "/v1/completions", "/v1/chat/completions"
_LETTERS = string.ascii_lowercase + "     \n"
_REGEXES = ("[a-z]{3,12}", "(yes|no), [0-9]{1,3}\\.", "[A-F0-9]{8}", "(ab|cd){2,9}e")
_SCHEMAS: Sequence[Json] = (
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 1, "maxItems": 4},
    {"type": "string", "maxLength": 12},
)
ENOUGH = 40
"""Tokens for the shortest output of each constraint; with fewer it would be refused."""
_TENANTS = ("paying", "free", "other")


@dataclass(frozen=True, slots=True)
class Call:
    """One request.

    count: the choices that it gets. max_new: the most tokens of each. pattern, schema: what
    whole outputs follow. probe: its number among the requests whose outputs are known.
    """

    path: str
    body: Json
    count: int
    max_new: int
    rid: str
    pattern: str | None = None
    schema: Json | None = None
    stops: tuple[str, ...] = ()
    probe: int | None = None

    @property
    def is_stream(self) -> bool:
        return self.body.get("stream") is True


@dataclass(slots=True)
class Caller:
    """Makes calls from one seed."""

    rng: random.Random
    name: str
    _shared: list[str] = field(default_factory=list[str])
    _count: int = 0

    def __post_init__(self) -> None:
        rng = random.Random(1)  # the same beginnings for all callers
        self._shared = [words(rng, length) for length in (40, 90, 150, 220)]

    def call(self) -> Call:
        """The next request."""
        self._count += 1
        rid = f"{self.name}-{self._count}"
        if self.rng.random() < 0.25:
            return self._probe(rid)
        make: Callable[[str], Call] = self.rng.choice((self._native, self._text, self._chat))
        return make(rid)

    def long_stream(self) -> Call:
        """As many and as large events as there may be."""
        self._count += 1
        rid, max_new = f"{self.name}-{self._count}", 220
        sampling: Json = {"max_new_tokens": max_new, "ignore_eos": True, "n": 2}
        body: Json = {
            **{"text": self._prompt(), "sampling_params": sampling, "stream": True, "rid": rid},
            **{"return_logprob": True, "top_logprobs_num": 5},
        }
        return Call(NATIVE, body, 2, max_new, rid)

    def _tenant(self) -> str:
        """Often one that is never heard of again: what is kept of it must not be kept for good."""
        return self.rng.choice((*_TENANTS, f"tenant {self.rng.getrandbits(64)}"))

    def _prompt(self) -> str:
        rng = self.rng
        return rng.choice(self._shared) + words(rng, rng.randint(1, 60))

    def _max_new(self) -> int:
        rng = self.rng
        return rng.choice((1, rng.randint(2, 20), rng.randint(20, 80), rng.randint(80, 200)))

    def _hints(self) -> Json:
        rng = self.rng
        hints: Json = {}
        if rng.random() < 0.3:
            hints["priority"] = rng.randint(-3, 5)
        if rng.random() < 0.3:
            hints["stages_left"] = rng.randint(1, 6)
        if rng.random() < 0.2:
            hints["lease"] = rng.choice((0.5, 3.0, 600.0))
        if rng.random() < 0.1:
            hints["cache_salt"] = rng.choice(("one", "two", f"only {rng.getrandbits(64)}"))
        return hints

    def _native(self, rid: str) -> Call:
        rng, max_new = self.rng, self._max_new()
        sampling: Json = {"max_new_tokens": max_new, "temperature": rng.choice((0.0, 0.7, 1.5))}
        count = rng.choice((1, 1, 1, 2, 4))
        if count > 1:
            sampling["n"] = count
        body: Json = {"sampling_params": sampling, "rid": rid, "tenant": self._tenant()}
        num_prompts = rng.choice((1, 1, 1, 3))
        body |= self._prompts(num_prompts)
        body |= self._hints()
        if rng.random() < 0.2:
            body |= {"return_logprob": True, "top_logprobs_num": rng.randint(0, 3)}
            body["logprob_start_len"] = rng.choice((0, 20))
        if rng.random() < 0.6:
            body |= {"stream": True, "incremental_streaming_output": rng.random() < 0.5}
        pattern, schema, stops = self._limit(sampling)
        if pattern or schema:
            max_new = sampling["max_new_tokens"] = max(max_new, ENOUGH)
        if num_prompts > 1:
            body["rid"] = [rid, *(f"{rid}.{index}" for index in range(1, num_prompts))]
        return Call(NATIVE, body, num_prompts * count, max_new, rid, pattern, schema, stops)

    def _prompts(self, count: int) -> Json:
        """So many, as text or as ids; a single one is no list."""
        texts = [self._prompt() for _ in range(count)]
        if self.rng.random() < 0.7:
            return {"text": texts if count > 1 else texts[0]}
        ids = [list(text.encode()) for text in texts]
        return {"input_ids": ids if count > 1 else ids[0]}

    def _limit(self, sampling: Json) -> tuple[str | None, Json | None, tuple[str, ...]]:
        """Perhaps one constraint, or stop strings, into the native sampling parameters."""
        rng, kind = self.rng, self.rng.random()
        if kind < 0.1:
            sampling["regex"] = rng.choice((*_REGEXES, f"[a-f]{{2,9}}{rng.randrange(10**6)}"))
            return str(sampling["regex"]), None, ()
        if kind < 0.2:
            schema = rng.choice(_SCHEMAS)
            sampling["json_schema"] = schema
            return None, schema, ()
        if kind < 0.4:
            stops = tuple(rng.sample(("a", "e", "th", "zz", "\n"), 2))
            sampling["stop"] = list(stops)
            return None, None, stops
        return None, None, ()

    def _open_ai(self, path: str, rid: str, **fields: object) -> Call:
        rng, max_new = self.rng, self._max_new()
        count = rng.choice((1, 1, 1, 3))
        body: Json = {"max_tokens": max_new, "n": count, "rid": rid, **fields, **self._hints()}
        body |= {"temperature": rng.choice((0.0, 1.0)), "user": self._tenant()}
        if rng.random() < 0.6:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        schema = None
        if rng.random() < 0.15:
            schema = rng.choice(_SCHEMAS)
            max_new = body["max_tokens"] = max(max_new, ENOUGH)
            named = {"name": "answer", "schema": schema}
            body["response_format"] = {"type": "json_schema", "json_schema": named}
        return Call(path, body, count, max_new, rid, schema=schema)

    def _text(self, rid: str) -> Call:
        logprobs = self.rng.choice((None, None, None, 2))
        return self._open_ai(TEXT, rid, prompt=self._prompt(), logprobs=logprobs)

    def _chat(self, rid: str) -> Call:
        messages = [
            {"role": "system", "content": self.rng.choice(self._shared)},
            {"role": "user", "content": words(self.rng, self.rng.randint(1, 50))},
        ]
        return self._open_ai(CHAT, rid, messages=messages)

    def _probe(self, rid: str) -> Call:
        number = self.rng.randrange(len(PROBES))
        body = {**PROBES[number], **self._hints(), "rid": rid}
        body |= {"stream": self.rng.random() < 0.5}
        return Call(NATIVE, body, 1, _PROBE_LEN, rid, probe=number)


def words(rng: random.Random, length: int) -> str:
    """Text of so many tokens."""
    return "".join(rng.choice(_LETTERS) for _ in range(length))


_PROBE_LEN = 48


def _probes() -> list[Json]:
    """Greedy requests: whatever else runs, their outputs are always the same."""
    rng, shared = random.Random(2), words(random.Random(1), 40)
    sampling: Json = {"max_new_tokens": _PROBE_LEN, "temperature": 0, "ignore_eos": True}
    plain = [shared + words(rng, rng.randint(1, 180)) for _ in range(10)]
    probes: list[Json] = [{"text": text, "sampling_params": sampling} for text in plain]
    limited: Json = {"max_new_tokens": _PROBE_LEN, "temperature": 0, "regex": "[a-m ]{20,60}"}
    return [*probes, {"text": shared, "sampling_params": limited}]


PROBES: Sequence[Json] = _probes()
