"""Bodies: bounded while they are read; faults of any depth become one refusal with a path."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.types import Message

from espalier.runtime.errors import InvalidRequest
from espalier.runtime.http.bodies import parse, read_body
from espalier.runtime.http.errors import PayloadTooLarge
from espalier.runtime.http.responses import ClientGone


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    level: float = 0.0
    names: list[str] = []


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    inner: Inner
    ids: list[int | list[int]] = []
    many: list[Inner] = []
    table: dict[int, float] = {}
    anything: object = None


def request(*pieces: bytes, length: int | None = None, leaves: bool = False) -> Request:
    """`leaves`: the client goes before it has sent all."""
    messages: list[Message] = [
        {"type": "http.request", "body": piece, "more_body": True} for piece in pieces
    ]
    if leaves:
        messages.append({"type": "http.disconnect"})
    else:
        messages.append({"type": "http.request", "body": b"", "more_body": False})
    coming = iter(messages)

    async def receive() -> Message:
        return next(coming)

    headers = [] if length is None else [(b"content-length", str(length).encode())]
    return Request({"type": "http", "method": "POST", "headers": headers}, receive)


def test_a_body_in_pieces() -> None:
    assert asyncio.run(read_body(request(b"ab", b"", b"c"), 3)) == b"abc"


@pytest.mark.parametrize(
    "asked",
    [
        lambda: request(length=4),
        lambda: request(length=10**30),
        lambda: request(b"ab", b"cd"),
        lambda: request(b"ab", b"cd", length=2),
    ],
)
def test_a_longer_one_is_refused(asked: Callable[[], Request]) -> None:
    with pytest.raises(PayloadTooLarge, match="3 bytes"):
        asyncio.run(read_body(asked(), 3))


def test_reading_stops_at_the_bound() -> None:
    """What comes after it is not asked for: there is no message left to receive."""
    asked = request(b"abcd", leaves=True)
    with pytest.raises(PayloadTooLarge):
        asyncio.run(read_body(asked, 3))


def test_a_client_that_leaves_amid_its_body() -> None:
    with pytest.raises(ClientGone):
        asyncio.run(read_body(request(b"a", leaves=True), 3))


def refusal(body: bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse(body, Outer)
    return caught.value


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (b"", None, "no body"),
        (b"{", None, "not valid JSON"),
        (b"\x80", None, "not valid UTF-8"),
        (b'{"inner": {"names": ["\xe4"]}}', None, "not valid UTF-8"),
        (b"{}", "inner", "missing"),
        (b'{"inner": {"x": 1}}', "inner.x", "unknown"),
        (b'{"inner": {}, "x`y": 1}', "x`y", "unknown"),
        (b'{"inner": {"level": "1"}}', "inner.level", "Expected `float`, got `str`"),
        (b'{"inner": {"names": ["a", 1]}}', "inner.names[1]", "Expected `str`"),
        (b'{"inner": {}, "many": [{}, {"level": []}]}', "many[1].level", "Expected `float`"),
        (b'{"inner": {}, "ids": [[1], [2, "x"]]}', "ids[1][1]", "Expected `int`"),
        (b'{"inner": {}, "table": {"a": 1}}', "table", "Expected `int`"),
        (b'{"inner": {}, "table": {"1": "a"}}', "table", "Expected `float`"),
        (b'{"inner": {"level": NaN}}', "inner.level", "NaN"),
        (b'{"inner": {}, "ids": [1, -Infinity]}', "ids[1]", "Infinity"),
        (b'{"inner": {"names": ["NaN"]}', None, "not valid JSON"),
        (b"NaN", None, "NaN"),
        (b'{"inner": {}, "anything": ' + b"[" * 100_000, None, "nested too deeply"),
        (b'{"inner": NaN, "anything": ' + b"[" * 100_000, None, "not valid JSON"),
    ],
    ids=lambda v: repr(v)[:50],
)
def test_faults(body: bytes, param: str | None, message: str) -> None:
    error = refusal(body)
    assert error.param == param
    assert message in str(error)


@given(st.binary(max_size=40))
def test_any_bytes_are_parsed_or_refused(body: bytes) -> None:
    try:
        parse(body, Outer)
    except InvalidRequest as error:
        assert str(error)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=3), st.lists))
def test_any_json_is_parsed_or_refused(data: object) -> None:
    body = json.dumps({"inner": {}, "anything": data}).encode()
    try:
        assert parse(body, Outer).anything == data
    except InvalidRequest as error:
        assert "NaN" in str(error)
        assert (error.param or "").startswith("anything")
