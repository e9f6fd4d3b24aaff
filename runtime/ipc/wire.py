"""Structs to bytes and back, as msgpack; arrays as their raw buffers. Nothing is unpickled."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast

import msgspec
import numpy as np
import numpy.typing as npt

PROTOCOL = "espalier/1"
"""Named by every process that reports for duty; the launcher takes no other."""

T = TypeVar("T")


class Wire(Generic[T]):
    """Codec of one boundary: `message_type` is the union of the structs that cross it.

    Arrays are int32, one-dimensional; a decoded one is read-only.
    """

    def __init__(self, message_type: Any) -> None:
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_buffer_of)
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(
            message_type, dec_hook=_array_of
        )

    def encode(self, message: T) -> bytes:
        return self._encoder.encode(message)

    def decode(self, data: bytes | bytearray) -> T:
        """Raises `msgspec.ValidationError` or `DecodeError`: the peer is broken."""
        return self._decoder.decode(data)


def _buffer_of(value: object) -> memoryview:
    if isinstance(value, np.ndarray):
        array = cast("npt.NDArray[np.int32]", value)
        assert array.dtype == np.int32 and array.ndim == 1, (array.dtype, array.shape)
        return np.ascontiguousarray(array).data.cast("B")
    raise TypeError(f"{type(value).__name__} does not cross a boundary")


def _array_of(kind: Any, value: object) -> object:
    origin = getattr(kind, "__origin__", kind)
    if origin is np.ndarray and isinstance(value, bytes) and len(value) % 4 == 0:
        return np.frombuffer(value, np.int32)
    raise TypeError(f"no {kind} in these bytes")
