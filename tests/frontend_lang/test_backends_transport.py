"""Requests over real sockets to a server that misbehaves by script."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.frontend_lang.backends.connections import Connections
from espalier.frontend_lang.backends.marker_cache import MarkerCache
from espalier.frontend_lang.backends.patience import Patience
from espalier.frontend_lang.backends.room import Room
from espalier.frontend_lang.backends.transport import Transport
from espalier.runtime.errors import InvalidRequest, RequestFailed, Unavailable
from espalier.runtime.programs.backend import RoleMarkers
from tests.scripted_server import Reply, reply, scripted_server, streamed

pytestmark = pytest.mark.timeout(60, method="thread")

FULL = reply(b'{"error": {"message": "full"}}', "503 Service Unavailable", "Retry-After: 0\r\n")
BROKEN = Reply(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhal", closes=True)


async def no_time(delay_s: float) -> None:
    """Waits for nothing."""


def transport(
    url: str,
    *,
    api_key: str | None = None,
    timeout_s: float = 30.0,
    sleep: Callable[[float], Awaitable[None]] = no_time,
) -> Transport:
    connections = Connections(url, uds=None, timeout_s=timeout_s, connect_timeout_s=5.0)
    return Transport(connections, api_key=api_key, sleep=sleep)


async def events(transport: Transport) -> list[bytes]:
    async with transport.events("/generate", b"{}", 1) as found:
        return [event async for event in found]


def test_a_request_as_the_server_sees_it() -> None:
    with scripted_server([reply(b"one"), reply(b"two")]) as server:
        base = transport(server.url + "/base/", api_key="secret")

        async def main() -> None:
            assert await base.call("GET", "/health") == b"one"
            assert await base.call("POST", "/tokenize", b'{"a": 1}') == b"two"

        asyncio.run(main())
    get, post = server.received
    assert (get.line, post.line) == ("GET /base/health HTTP/1.1", "POST /base/tokenize HTTP/1.1")
    assert "Authorization: Bearer secret\r\n" in post.head
    assert f"Host: {server.url.removeprefix('http://')}\r\n" in post.head
    assert post.body == b'{"a": 1}'
    assert (get.connection, post.connection) == (0, 0)  # kept alive


def test_a_stream_ends_behind_its_last_event_and_leaves_the_connection() -> None:
    replies = [streamed(b"data: a\n\nda", b"ta: b\n\n", b"data: [DONE]\n\n"), reply(b"ok")]
    with scripted_server(replies) as server:
        client = transport(server.url)

        async def main() -> None:
            assert await events(client) == [b"a", b"b"]
            assert await client.call("GET", "/") == b"ok"

        asyncio.run(main())
    assert server.num_connections == 1


def test_leaving_a_stream_closes_its_connection_at_once() -> None:
    with scripted_server([streamed(b"data: a\n\n", ends=False, hold=True)]) as server:
        client = transport(server.url)

        async def main() -> None:
            async with client.events("/generate", b"{}", 1) as found:
                assert await anext(aiter(found)) == b"a"
            assert await asyncio.to_thread(server.left.wait, 30)

        asyncio.run(main())


def test_a_full_server_is_asked_again() -> None:
    with scripted_server([FULL, FULL, streamed(b"data: a\n\n"), FULL, reply(b"ok")]) as server:
        client = transport(server.url)

        async def main() -> None:
            assert await events(client) == [b"a"]
            assert await client.call("GET", "/") == b"ok"

        asyncio.run(main())
    assert len(server.received) == 5


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (reply(b'{"error": {"message": "stopping"}}', "503 X"), Unavailable, "stopping"),
        (reply(b"", "503 X", "Retry-After: 3600\r\n"), Unavailable, "503"),
        (reply(b"", "400 X", "Retry-After: 0\r\n"), InvalidRequest, "400"),
        (reply(b"", "500 X", "Retry-After: 0\r\n"), RequestFailed, "500"),
        (BROKEN, RequestFailed, "was lost"),
        (Reply(b"", closes=True), RequestFailed, "was lost"),
        (Reply(b"not HTTP\r\n\r\n", closes=True), RequestFailed, "was lost"),
    ],
)
def test_what_is_not_tried_again(answer: Reply, kind: type[Exception], message: str) -> None:
    with scripted_server([answer]) as server, pytest.raises(kind, match=message):
        asyncio.run(transport(server.url).call("GET", "/"))
    assert len(server.received) == 1


def test_a_stream_that_breaks_is_an_error_after_its_events() -> None:
    with scripted_server([streamed(b"data: a\n\n", ends=False)]) as server:
        client = transport(server.url)
        seen: list[bytes] = []

        async def main() -> None:
            async with client.events("/generate", b"{}", 1) as found:
                async for event in found:
                    seen.append(event)

        with pytest.raises(RequestFailed, match=f"the connection to {server.url} was lost"):
            asyncio.run(main())
    assert seen == [b"a"]


def test_a_server_that_is_silent_for_too_long() -> None:
    with scripted_server([Reply(b"", hold=True)]) as server:
        client = transport(server.url, timeout_s=0.05)
        with pytest.raises(RequestFailed, match="not answered in time"):
            asyncio.run(client.call("GET", "/"))
        assert server.left.wait(30)


def test_a_connection_that_the_server_has_closed_meanwhile_is_replaced() -> None:
    """It answers the first request and closes; the second one must not fail for that."""
    closing = Reply(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", closes=True)
    with scripted_server([closing] * 20) as server:
        client = transport(server.url)

        async def main() -> list[bytes]:
            return [await client.call("GET", "/") for _ in range(20)]

        assert asyncio.run(main()) == [b"ok"] * 20


def test_a_server_that_never_answered_is_not_waited_for() -> None:
    with scripted_server([]) as server:
        url = server.url
    with pytest.raises(Unavailable, match=f"{url} can't be reached"):
        asyncio.run(transport(url).call("GET", "/"))


def test_a_server_that_is_being_replaced_is_waited_for() -> None:
    async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply(b"ok").data)
        writer.close()

    async def main() -> None:
        first = await asyncio.start_server(answering, "127.0.0.1", 0)
        port = first.sockets[0].getsockname()[1]
        servers = [first]

        async def replace(delay_s: float) -> None:
            delays.append(delay_s)
            if len(delays) == 3:
                servers.append(await asyncio.start_server(answering, "127.0.0.1", port))

        client = transport(f"http://127.0.0.1:{port}", sleep=replace)
        assert await client.call("GET", "/") == b"ok"
        first.close()
        await first.wait_closed()
        assert await client.call("GET", "/") == b"ok"
        servers[1].close()
        await client.close()

    delays: list[float] = []
    asyncio.run(main())
    assert delays == [0.1, 0.2, 0.4]


def test_thousands_of_streams_at_once_are_served_a_bounded_number_at_a_time() -> None:
    most, open_now = 0, 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal most, open_now
        while await reader.read(1 << 16):
            open_now += 1
            most = max(most, open_now)
            await asyncio.sleep(0)
            open_now -= 1
            writer.write(streamed(b"data: a\n\n").data)
        writer.close()

    async def main() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0, backlog=2048) as server:
            client = transport(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            found = await asyncio.gather(*[events(client) for _ in range(2000)])
            assert found == [[b"a"]] * 2000
            await client.close()

    asyncio.run(main())
    assert 1 < most <= 512


@given(st.lists(st.tuples(st.integers(0, 12), st.booleans()), max_size=30))
def test_room_is_never_exceeded_and_never_lost(asked: list[tuple[int, bool]]) -> None:
    """Each asks for so much, and leaves early or not; in the end all of it is free again."""
    room, size = Room(8), 8
    held, entered = 0, list[int]()

    async def hold(index: int, count: int) -> None:
        nonlocal held
        async with room.of(count):
            entered.append(index)
            held += min(count, size)
            assert held <= size
            await asyncio.sleep(0)
            held -= min(count, size)

    async def main() -> None:
        tasks = [asyncio.create_task(hold(i, count)) for i, (count, _) in enumerate(asked)]
        await asyncio.sleep(0)
        for task, (_, leaves) in zip(tasks, asked, strict=True):
            if leaves:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert entered == sorted(entered)  # first come, first served
        async with asyncio.timeout(30), room.of(size):
            pass

    asyncio.run(main())


@pytest.mark.parametrize(
    "url", ["localhost:30000", "ftp://host", "http://", "http://host:port", "http://host:99999", ""]
)
def test_a_bad_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        Connections(url, uds=None, timeout_s=1.0, connect_timeout_s=1.0)
    assert raised.value.param == "base_url"


def test_patience_doubles_its_delays_up_to_its_end() -> None:
    clock = [100.0]
    patience = Patience(10.0, lambda: clock[0])
    delays: list[float] = []
    while (delay_s := patience.delay_s()) is not None:
        delays.append(delay_s)
        clock[0] += delay_s
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]
    assert clock[0] <= 110.0
    assert Patience(10.0, lambda: 0.0).delay_s(3.0) == 3.0
    assert Patience(10.0, lambda: 0.0).delay_s(11.0) is None
    assert Patience(0.0, lambda: 0.0).delay_s() is None


def test_markers_are_asked_for_once_by_many_and_again_when_old() -> None:
    clock = [0.0]
    asked: list[tuple[str, ...]] = []

    async def ask(roles: tuple[str, ...]) -> RoleMarkers:
        asked.append(roles)
        await asyncio.sleep(0)
        if roles == ("bad",):
            raise InvalidRequest("no such role")
        return RoleMarkers(f"<{roles[-1]}>", str(len(asked)))

    async def main() -> None:
        cache = MarkerCache(ask, lambda: clock[0])
        found = await asyncio.gather(*[cache.get(("user",)) for _ in range(50)])
        assert set(found) == {RoleMarkers("<user>", "1")}
        assert await cache.get(("user", "user")) == RoleMarkers("<user>", "2")
        clock[0] = 61.0
        assert await cache.get(("user",)) == RoleMarkers("<user>", "3")
        for _ in range(2):
            with pytest.raises(InvalidRequest):
                await cache.get(("bad",))
        assert len(asked) == 5

    asyncio.run(main())
