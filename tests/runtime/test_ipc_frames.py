"""Frames over real sockets: whole or not at all, whatever the peer does."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterator
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.runtime.ipc.frames import (
    MAX_FRAME_BYTES,
    receive_frame,
    receive_frame_async,
    send_frame,
    send_frame_async,
)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


@given(st.lists(st.binary(max_size=300)))
def test_frames_arrive_as_they_were_sent(messages: list[bytes]) -> None:
    async def talk(ours: socket.socket) -> None:
        for message in messages:
            await send_frame_async(ours, message)
        for message in messages:
            assert bytes(await receive_frame_async(ours) or b"") == message

    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        echo = Thread(target=send_back, args=(theirs, len(messages)))
        echo.start()
        asyncio.run(talk(ours))
        echo.join()


def send_back(connection: socket.socket, count: int) -> None:
    for _ in range(count):
        message = receive_frame(connection)
        assert message is not None
        send_frame(connection, bytes(message))


def test_a_frame_larger_than_any_buffer(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    message = bytes(range(256)) * 40_000
    sender = Thread(target=send_frame, args=(theirs, message))
    sender.start()
    assert bytes(asyncio.run(receive_frame_async(ours)) or b"") == message
    sender.join()


@pytest.mark.parametrize("sent", [b"", b"\x05", b"\x05\0\0\0", b"\x05\0\0\0abcd"])
def test_a_peer_that_dies_in_the_middle(
    pair: tuple[socket.socket, socket.socket], sent: bytes
) -> None:
    ours, theirs = pair
    theirs.sendall(sent)
    theirs.close()
    assert asyncio.run(receive_frame_async(ours)) is None


def test_a_peer_that_dies_with_something_unread(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    ours.send(b"x")
    theirs.close()
    assert asyncio.run(receive_frame_async(ours)) is None
    with pytest.raises(ConnectionError):
        asyncio.run(send_frame_async(ours, b"more"))
    ours, theirs = socket.socketpair()
    with ours:
        ours.send(b"x")
        theirs.close()
        assert receive_frame(ours) is None


def test_nonsense_takes_no_memory(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.sendall(struct.pack("<I", MAX_FRAME_BYTES + 1))
    with pytest.raises(ValueError, match="is announced"):
        asyncio.run(receive_frame_async(ours))
