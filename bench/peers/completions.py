"""What every contender is asked, and what it must answer: completions over token ids, greedy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import cast

from bench.http_client import Connection, Served

PATH = "/v1/completions"
_LIMIT_S = 600.0


class WrongAnswer(RuntimeError):
    """A contender computed something other than it was asked for."""


Fields = Mapping[str, object]


def json_schema(schema: Fields) -> Fields:
    """What asks for JSON of this schema."""
    return {"json_schema": schema}


def response_format(schema: Fields) -> Fields:
    """The same in OpenAI's words."""
    named = {"name": "record", "schema": schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where completions are asked for; `fields` are those that only this server needs, and
    `schema_fields` those by which it takes a schema."""

    url: str
    fields: Fields
    schema_fields: Callable[[Fields], Fields] = json_schema


def completion_body(endpoint: Endpoint, prompt: Sequence[int], new: int) -> dict[str, object]:
    """A stream of exactly `new` tokens that ends with its usage."""
    return {
        "prompt": list(prompt),
        "max_tokens": new,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **endpoint.fields,
    }


async def complete_all(
    endpoint: Endpoint, prompts: Sequence[Sequence[int]], new: int
) -> list[Served]:
    """All prompts at once, each on a connection that is there already.

    Raises `OSError` or `RuntimeError` if the server fails, answers something else, or takes
    longer than ten minutes.
    """
    async with asyncio.timeout(_LIMIT_S), AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(Connection(endpoint.url)) for _ in prompts]
        return await asyncio.gather(
            *(
                _complete(connection, endpoint, prompt, new)
                for connection, prompt in zip(connections, prompts, strict=True)
            )
        )


async def _complete(
    connection: Connection, endpoint: Endpoint, prompt: Sequence[int], new: int
) -> Served:
    served = await connection.stream(PATH, completion_body(endpoint, prompt, new))
    check_usage(served.last, len(prompt), new)
    return served


def check_usage(event: Mapping[str, object], prompt_len: int, new: int) -> None:
    """Raise `WrongAnswer` unless the last event counts these tokens: no BOS, no early end."""
    usage = event.get("usage")
    counts = cast("dict[str, object]", usage) if isinstance(usage, dict) else {}
    got = counts.get("prompt_tokens"), counts.get("completion_tokens")
    if got != (prompt_len, new):
        raise WrongAnswer(f"asked for {new} tokens after {prompt_len}, the usage says {usage}")
