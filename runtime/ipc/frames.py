"""Whole messages over a stream socket: four bytes of length, little-endian, then the message.

The peer may die at any byte: that reads as the end, as where it has closed its side.
"""

from __future__ import annotations

import asyncio
import socket
import struct

MAX_FRAME_BYTES = 64 << 20

_LENGTH = struct.Struct("<I")


def send_frame(connection: socket.socket, message: bytes) -> None:
    """Blocks until it is sent. Raises `ConnectionError` where the peer is gone."""
    connection.sendall(_head(message))
    connection.sendall(message)


def receive_frame(connection: socket.socket) -> bytearray | None:
    """Blocks until a whole message is there; None at the end."""
    head = _receive(connection, _LENGTH.size)
    return None if head is None else _receive(connection, _body_len(head))


async def send_frame_async(connection: socket.socket, message: bytes) -> None:
    """`send_frame` for a socket that does not block."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(connection, _head(message))
    await loop.sock_sendall(connection, message)


async def receive_frame_async(connection: socket.socket) -> bytearray | None:
    """`receive_frame` for a socket that does not block. Raises `ValueError` if the peer
    announces more than `MAX_FRAME_BYTES`: it is broken."""
    head = await _receive_async(connection, _LENGTH.size)
    return None if head is None else await _receive_async(connection, _body_len(head))


def _head(message: bytes) -> bytes:
    assert len(message) <= MAX_FRAME_BYTES, len(message)
    return _LENGTH.pack(len(message))


def _body_len(head: bytearray) -> int:
    (length,) = _LENGTH.unpack(head)
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"a message of {length} bytes is announced")
    return int(length)


def _receive(connection: socket.socket, size: int) -> bytearray | None:
    data = bytearray(size)
    left = memoryview(data)
    try:
        while left and (count := connection.recv_into(left)):
            left = left[count:]
    except ConnectionError:  # it died with something unread
        return None
    return None if left else data


async def _receive_async(connection: socket.socket, size: int) -> bytearray | None:
    loop = asyncio.get_running_loop()
    data = bytearray(size)
    left = memoryview(data)
    try:
        while left and (count := await loop.sock_recv_into(connection, left)):
            left = left[count:]
    except ConnectionError:
        return None
    return None if left else data
