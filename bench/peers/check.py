"""Shows what a contender generates, for a person to judge: no timing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast
from urllib.request import Request, urlopen

import orjson
from tokenizers import Tokenizer

from bench.peers.completions import PATH, Endpoint, check_usage, completion_body

_PROMPT = "The three largest cities of France are"
_NEW = 24
_EVENT = b"data: "
_LIMIT_S = 120.0


def continuation(endpoint: Endpoint, tokenizer_file: Path) -> str:
    """The greedy continuation of one prompt, whose ids `tokenizer_file` knows."""
    loader: Any = Tokenizer
    tokenizer = loader.from_file(str(tokenizer_file))
    ids = cast("list[int]", tokenizer.encode(_PROMPT).ids)
    request = Request(
        endpoint.url + PATH,
        orjson.dumps(completion_body(endpoint, ids, _NEW)),
        {"Content-Type": "application/json"},
    )
    with urlopen(request, timeout=_LIMIT_S) as answer:
        events = list(events_of(answer))
    check_usage(events[-1], len(ids), _NEW)
    return text_of(events) or str(tokenizer.decode(tokens_of(events)))


def events_of(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    """The JSON events of a stream, without the one that closes it."""
    data = [line.removeprefix(_EVENT).strip() for line in lines if line.startswith(_EVENT)]
    return [orjson.loads(event) for event in data if event != b"[DONE]"]


def text_of(events: Iterable[dict[str, Any]]) -> str:
    return "".join(choice["text"] for event in events for choice in event["choices"])


def tokens_of(events: Iterable[dict[str, Any]]) -> list[int]:
    """What servers of libraries give instead of text."""
    return [
        token
        for event in events
        for choice in event["choices"]
        for token in choice.get("token_ids") or ()
    ]
