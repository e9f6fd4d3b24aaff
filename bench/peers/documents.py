"""Documents under one JSON schema: how many valid ones a contender writes in a second."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import cache
from random import Random
from time import perf_counter

from bench.http_client import Connection
from bench.peers.check import events_of, text_of, tokens_of
from bench.peers.completions import PATH, Endpoint
from espalier.runtime.grammar.validation import validate_json
from espalier.runtime.hub.source import resolve_model
from espalier.runtime.tokenizer.tokenizer import Tokenizer, load_tokenizer

# As in shared/reference/peers.md.
_TEXT = {"type": "string"}
_ADDRESS = {"street": _TEXT, "city": _TEXT, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}}
_TAGS = {
    "type": "array",
    "items": {"type": "string", "maxLength": 12},
    "minItems": 3,
    "maxItems": 3,
}


def _closed(properties: Mapping[str, object]) -> dict[str, object]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


SCHEMA = _closed(
    {"name": _TEXT, "age": {"type": "integer"}, "tags": _TAGS, "address": _closed(_ADDRESS)}
)
MAX_TOKENS = 160
_NAMES = ("Ada", "Boris", "Chidi", "Dana", "Emil", "Farah", "Goran", "Hana", "Igor", "Jun")
_LIMIT_S = 600.0


def write_documents(endpoint: Endpoint, random: Random, streams: int) -> tuple[int, float]:
    """How many are valid, of one instruction for each stream; and the seconds from the start of
    all to the end of the last."""
    prompts = [_prompt(random) for _ in range(streams)]
    seconds, texts = asyncio.run(_write_all(endpoint, prompts))
    schema = json.dumps(SCHEMA)
    return sum(validate_json(schema, text).valid is True for text in texts), seconds


@cache
def _tokenizer() -> Tokenizer:
    return load_tokenizer(resolve_model("smollm2").path)


def _prompt(random: Random) -> list[int]:
    """New each time, as no cache is to know its end."""
    content = (
        f"Write a JSON record of {random.choice(_NAMES)}, who is {random.randint(18, 80)} years "
        f"old and lives at number {random.randint(1, 99_999)} of a street, with three tags."
    )
    return _tokenizer().encode_chat([{"role": "user", "content": content}])


async def _write_all(
    endpoint: Endpoint, prompts: Sequence[Sequence[int]]
) -> tuple[float, list[str]]:
    """Seconds to the end of the last, and the texts."""
    async with asyncio.timeout(_LIMIT_S), AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(Connection(endpoint.url)) for _ in prompts]
        start = perf_counter()
        texts = await asyncio.gather(
            *(
                _write(connection, endpoint, prompt)
                for connection, prompt in zip(connections, prompts, strict=True)
            )
        )
        return perf_counter() - start, texts


async def _write(connection: Connection, endpoint: Endpoint, prompt: Sequence[int]) -> str:
    body: dict[str, object] = {
        "prompt": list(prompt),
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "stream": True,
        **endpoint.fields,
        **endpoint.schema_fields(SCHEMA),
    }
    lines: list[bytes] = []
    await connection.stream(PATH, body, keep=lines.append)
    events = events_of(lines)
    controls = _tokenizer().control_ids
    ids = [token_id for token_id in tokens_of(events) if token_id not in controls]
    return text_of(events) or _tokenizer().decode(ids)
