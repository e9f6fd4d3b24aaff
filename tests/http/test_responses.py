"""Responses end with their client: in every state, with the generator closed once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest
from starlette.requests import Request
from starlette.types import Message

from espalier.runtime.errors import (
    EspalierError,
    InvalidRequest,
    Overloaded,
    RequestFailed,
    Unavailable,
)
from espalier.runtime.http.errors import (
    ModelNotFound,
    PayloadTooLarge,
    Unauthorized,
    error_response,
    failure_of,
    raise_if_failed,
    status_of,
)
from espalier.runtime.http.responses import ClientGone, EventStream, sse, until_disconnect
from espalier.runtime.messages import FinishReason

DEADLINE_S = 10.0
Send = Callable[[Message], Awaitable[None]]


class Client:
    """The other side of one response. With `reads` False every send hangs."""

    def __init__(self, *, reads: bool = True) -> None:
        self.sent: list[Message] = []
        self.gone = asyncio.Event()
        self.sending = asyncio.Event()
        self._reads = reads

    async def receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sending.set()
        if not self._reads:
            await asyncio.Event().wait()
        self.sent.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(m["body"] for m in self.sent if m["type"] == "http.response.body")


class Source:
    """A generator of events that notes how it ends."""

    def __init__(self, *events: bytes, then: Exception | None = None, hangs: bool = False) -> None:
        self.started = asyncio.Event()
        self.num_finished = self.num_closed = 0
        self._events, self._then, self._hangs = events, then, hangs

    async def events(self) -> AsyncGenerator[bytes]:
        self.started.set()
        try:
            for event in self._events:
                yield event
            if self._hangs:
                await asyncio.Event().wait()
            if self._then is not None:
                raise self._then
        finally:
            self.num_finished += 1

    def on_close(self) -> None:
        self.num_closed += 1


async def respond(client: Client, source: Source) -> None:
    stream = EventStream(source.events(), source.on_close)
    async with asyncio.timeout(DEADLINE_S):
        await stream({"type": "http"}, client.receive, client.send)


def test_a_stream_to_its_end() -> None:
    async def run() -> None:
        client, source = Client(), Source(sse({"a": 1}), sse({"b": 2}))
        await respond(client, source)
        start, *_, last = client.sent
        headers = dict(start["headers"])
        assert start["status"] == 200
        assert headers[b"content-type"].startswith(b"text/event-stream")
        assert headers[b"cache-control"] == b"no-cache"
        assert headers[b"x-accel-buffering"] == b"no"
        assert client.body == b'data: {"a":1}\n\ndata: {"b":2}\n\n'
        assert last["more_body"] is False
        assert (source.num_finished, source.num_closed) == (1, 1)

    asyncio.run(run())


def test_an_error_is_the_last_event() -> None:
    async def run() -> None:
        client = Client()
        source = Source(b"data: 1\n\n", then=InvalidRequest("bad", param="x"))
        await respond(client, source)
        first, second, _ = client.body.split(b"\n\n")
        assert first == b"data: 1"
        error = json.loads(second.removeprefix(b"data: "))["error"]
        assert error == {
            "message": "bad",
            "type": "invalid_request_error",
            "param": "x",
            "code": 400,
        }
        assert client.sent[-1]["more_body"] is False
        assert (source.num_finished, source.num_closed) == (1, 1)

    asyncio.run(run())


def test_a_fault_of_ours_breaks_the_stream_off_and_is_raised() -> None:
    async def run() -> None:
        client, source = Client(), Source(b"data: 1\n\n", then=RuntimeError("secret"))
        with pytest.raises(RuntimeError):
            await respond(client, source)
        assert b"secret" not in client.body
        assert client.sent[-1]["more_body"] is True  # the client can tell
        assert (source.num_finished, source.num_closed) == (1, 1)

    asyncio.run(run())


def test_leaving_before_the_first_event() -> None:
    async def run() -> None:
        client, source = Client(), Source(hangs=True)
        task = asyncio.ensure_future(respond(client, source))
        await source.started.wait()
        client.gone.set()
        await task
        assert client.body == b""
        assert (source.num_finished, source.num_closed) == (1, 1)

    asyncio.run(run())


def test_leaving_between_events() -> None:
    async def run() -> None:
        client, source = Client(), Source(b"data: 1\n\n", hangs=True)
        task = asyncio.ensure_future(respond(client, source))
        while not client.body:
            await asyncio.sleep(0)
        client.gone.set()
        await task
        assert client.body == b"data: 1\n\n"
        assert (source.num_finished, source.num_closed) == (1, 1)

    asyncio.run(run())


def test_leaving_before_the_generator_has_started() -> None:
    """Its own `finally` does not run then: `on_close` does."""

    async def run() -> None:
        client, source = Client(reads=False), Source(b"data: 1\n\n")
        task = asyncio.ensure_future(respond(client, source))
        await client.sending.wait()
        client.gone.set()
        await task
        assert not source.started.is_set()
        assert source.num_closed == 1

    asyncio.run(run())


def test_having_left_already() -> None:
    async def run() -> None:
        client, source = Client(), Source(hangs=True)
        client.gone.set()
        await respond(client, source)
        assert source.num_closed == 1

    asyncio.run(run())


def test_the_server_cancels_a_stream() -> None:
    async def run() -> None:
        client, source = Client(), Source(b"data: 1\n\n", hangs=True)
        task = asyncio.ensure_future(respond(client, source))
        await source.started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (source.num_finished, source.num_closed) == (1, 1)

    asyncio.run(run())


def request_of(client: Client) -> Request:
    return Request({"type": "http", "method": "POST", "headers": []}, client.receive)


def test_work_ends_before_its_client_leaves() -> None:
    async def work() -> str:
        return "done"

    async def fails() -> str:
        raise RequestFailed("no")

    async def run() -> None:
        assert await until_disconnect(request_of(Client()), work()) == "done"
        with pytest.raises(RequestFailed):
            await until_disconnect(request_of(Client()), fails())

    asyncio.run(run())


def test_a_client_leaves_before_its_work_ends() -> None:
    async def run() -> None:
        client, ended = Client(), asyncio.Event()

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        task = asyncio.ensure_future(until_disconnect(request_of(client), work()))
        await asyncio.sleep(0)
        client.gone.set()
        with pytest.raises(ClientGone):
            await task
        assert ended.is_set()

    asyncio.run(run())


def test_what_the_work_gave_is_not_lost_with_the_client() -> None:
    """It may hold something that has to be closed."""

    async def run() -> None:
        client = Client()

        async def work() -> str:
            client.gone.set()
            return "held"

        assert await until_disconnect(request_of(client), work()) == "held"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InvalidRequest("m"), 400, "invalid_request_error"),
        (Unauthorized("m"), 401, "authentication_error"),
        (ModelNotFound("m"), 404, "not_found_error"),
        (PayloadTooLarge("m"), 413, "invalid_request_error"),
        (RequestFailed("m"), 500, "server_error"),
        (Unavailable("m"), 503, "service_unavailable"),
        (Overloaded("m", 2.4), 429, "rate_limit_error"),
    ],
)
def test_statuses(error: EspalierError, status: int, kind: str) -> None:
    assert status_of(error) == status
    response = error_response(error)
    assert response.status_code == status
    code = "model_not_found" if isinstance(error, ModelNotFound) else status
    assert json.loads(bytes(response.body)) == {
        "error": {"message": "m", "type": kind, "param": None, "code": code}
    }
    seconds = {503: "1", 429: "3"}.get(status)
    assert response.headers.get("retry-after") == seconds


@pytest.mark.parametrize(
    ("finish", "status"),
    [
        (FinishReason(kind="stop"), None),
        (FinishReason(kind="length"), None),
        (FinishReason(kind="abort", message="m"), None),
        (FinishReason(kind="error", message="m"), 500),
        (FinishReason(kind="error", message="m", bad_request=True), 400),
        (FinishReason(kind="error", message="m", lost=True), 503),
        (FinishReason(kind="error", message="m", retry_after_s=0.2), 429),
    ],
)
def test_ends(finish: FinishReason, status: int | None) -> None:
    failure = failure_of(finish)
    assert (None if failure is None else status_of(failure)) == status
    if status is None:
        raise_if_failed(finish)
    else:
        with pytest.raises(EspalierError, match="m") as caught:
            raise_if_failed(finish)
        assert status_of(caught.value) == status
