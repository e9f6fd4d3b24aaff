"""What came back for a call: read to its end, and held to what was asked and to the protocol.

Knows no causes: whether a request may have been lost is the ledger's to say.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from bench.soak.calls import CHAT, NATIVE, Call
from bench.soak.wire import Broken, Connection

Kind = Literal["done", "aborted", "refused", "lost", "broken"]
"""done: all choices ended by themselves. aborted: some were aborted. refused: not taken, now.
lost: an error, as a process died. broken: the connection ended."""

_ENDS = ("stop", "length", "abort", "error")
LOST = re.compile(r"process ended|the runtime (recovers|is starting)")
_REFUSED = re.compile(
    r"the queue is full|does not keep up|the first token would come|shutting down"
)


class Wrong(Exception):
    """The answer is not what the protocol, or the call, says."""


@dataclass(slots=True)
class Choice:
    """One choice as it comes in. `ids`: of the native route alone."""

    text: str = ""
    ids: list[int] = field(default_factory=list[int])
    finish: str | None = None
    num_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended. `ids` of its first choice, if all went well and they are known."""

    kind: Kind
    why: str = ""
    ids: tuple[int, ...] = ()


async def outcome(call: Call, connection: Connection) -> Outcome:
    """Read the answer to `call`. Raises `Wrong`."""
    try:
        status = await connection.status()
        if status == 200 and call.is_stream:
            return await _streamed(call, connection.parts())
        body = b"".join([part async for part in connection.parts()])
    except Broken as error:
        return Outcome("broken", str(error))
    data = _parsed(body)
    if status != 200:
        return _failed(status, data)
    choices = [Choice() for _ in range(call.count)]
    _take_whole(call, data, choices)
    return _judged(call, choices)


async def events(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The data of each server-sent event."""
    rest = b""
    async for part in parts:
        *whole, rest = (rest + part).split(b"\n\n")
        for event in whole:
            if not event.startswith(b"data: "):
                raise Wrong(f"not an event: {event[:200]!r}")
            yield event.removeprefix(b"data: ")
    if rest:
        raise Wrong(f"the stream ends within an event: {rest[:200]!r}")


async def _streamed(call: Call, parts: AsyncIterator[bytes]) -> Outcome:
    """On the native route an error is the end of its choice, elsewhere that of the stream."""
    choices = [Choice() for _ in range(call.count)]
    failure: Outcome | None = None
    is_over = False
    async for data in events(parts):
        if is_over:
            raise Wrong(f"an event behind the last one: {data[:200]!r}")
        if data == b"[DONE]":
            is_over = True
        elif "error" not in (event := _parsed(data)):
            _take_event(call, event, choices)
        else:
            failure = _failed(event["error"]["code"], event)
            if call.path == NATIVE:
                _take_part(choices[int(event.get("index", 0))], "", "error")
            else:
                is_over = True
    if not is_over:
        raise Wrong("the stream has no end")
    if failure is not None and call.path != NATIVE:
        return failure
    judged = _judged(call, choices)
    return judged if failure is None else failure


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        raise Wrong(f"no JSON: {data[:200]!r}") from None


def _failed(status: int, data: Any) -> Outcome:
    """Of an error, alone or as the last event."""
    message = str(data["error"]["message"])
    if status == 503 and LOST.search(message):
        return Outcome("lost", message)
    if status in (429, 503) and _REFUSED.search(message):
        return Outcome("refused", message)
    raise Wrong(f"{status}: {message}")


def _take_whole(call: Call, data: Any, choices: list[Choice]) -> None:
    if call.path == NATIVE:
        answers = cast("list[dict[str, Any]]", data if isinstance(data, list) else [data])
        for answer, choice in zip(answers, choices, strict=True):
            _take_native(answer, choice, is_delta=False)
        return
    for answer in cast("list[dict[str, Any]]", data["choices"]):
        text = answer["message"]["content"] if call.path == CHAT else answer["text"]
        _take_part(choices[int(answer["index"])], text, answer["finish_reason"])
    if data["usage"]["completion_tokens"] > call.count * call.max_new:
        raise Wrong(f"more tokens than asked for: {data['usage']}")


def _take_event(call: Call, event: Any, choices: list[Choice]) -> None:
    if call.path == NATIVE:
        is_delta = call.body.get("incremental_streaming_output") is True
        _take_native(event, choices[int(event.get("index", 0))], is_delta=is_delta)
        return
    for part in event["choices"]:
        text = part["delta"].get("content", "") if call.path == CHAT else part["text"]
        _take_part(choices[int(part["index"])], text, part["finish_reason"])


def _take_native(answer: dict[str, Any], choice: Choice, *, is_delta: bool) -> None:
    meta = answer["meta_info"]
    if not is_delta:
        if answer["output_ids"][: len(choice.ids)] != choice.ids:
            raise Wrong(f"{answer['output_ids']} does not go on from {choice.ids}")
        if not answer["text"].startswith(choice.text):
            raise Wrong(f"{answer['text']!r} does not go on from {choice.text!r}")
        choice.text, choice.ids = "", []
    finish = meta["finish_reason"]
    _take_part(choice, answer["text"], None if finish is None else finish["type"])
    choice.ids += answer["output_ids"]
    if finish is not None:
        choice.num_tokens = meta["completion_tokens"]
        if meta["cached_tokens"] > meta["prompt_tokens"]:
            raise Wrong(f"more cached than there is: {meta}")


def _take_part(choice: Choice, text: str, finish: str | None) -> None:
    if choice.finish is not None:
        raise Wrong("a part behind the final message of its choice")
    choice.text += text
    choice.finish = finish


def _judged(call: Call, choices: list[Choice]) -> Outcome:
    """All that must hold of an answer that is complete."""
    for choice in choices:
        if choice.finish not in _ENDS:
            raise Wrong(f"a choice without a final message: {choice}")
        if choice.num_tokens is not None and choice.num_tokens != len(choice.ids):
            raise Wrong(f"{choice.num_tokens} tokens, but the ids {choice.ids}")
        if len(choice.ids) > call.max_new:
            raise Wrong(f"{len(choice.ids)} tokens, {call.max_new} asked for")
        if choice.finish in ("stop", "length"):
            _check_constraint(call, choice.text)
        if choice.finish == "stop":
            _check_stopped(call, choice.text)
    if any(choice.finish == "abort" for choice in choices):
        return Outcome("aborted")
    return Outcome("done", ids=tuple(choices[0].ids))


def _check_constraint(call: Call, text: str) -> None:
    """It is whole, whatever ended it."""
    if call.pattern is not None and not re.fullmatch(call.pattern, text):
        raise Wrong(f"{text!r} does not match {call.pattern}")
    if call.schema is not None:
        _parsed(text.encode())


def _check_stopped(call: Call, text: str) -> None:
    for stop in call.stops:
        if stop in text:
            raise Wrong(f"the stop string {stop!r} is in {text!r}")
