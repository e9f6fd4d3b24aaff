"""A JSON value while its text is still being written."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from pydantic_core import from_json

_NUMBER = re.compile(r"-?[0-9][-+.0-9eE]*$")
_NOTHING = object()


class PartialJson:
    """The value of a JSON text that comes in pieces.

    Values only grow: keys and items are added, and the string that is being written gets longer.
    A number is there when it is known to have ended; a key, when there is something of its value.
    """

    def __init__(self) -> None:
        self._text = ""
        self._in_string = self._is_escaped = False
        self._last: object = _NOTHING

    def feed(self, piece: str) -> Iterator[Any]:
        """The value after one more piece of the text, if it has changed."""
        self._text += piece
        for character in piece:
            if self._is_escaped:
                self._is_escaped = False
            elif character == '"':
                self._in_string = not self._in_string
            elif character == "\\":
                self._is_escaped = self._in_string
        text = self._text if self._in_string else _NUMBER.sub("", self._text)
        try:
            value = from_json(text, allow_partial="trailing-strings", allow_inf_nan=False)
        except ValueError:  # nothing yet, or no JSON at all, which the end will tell
            return
        yield from self._changed(value)

    def end(self) -> Iterator[Any]:
        """The whole value, if it has changed. Raises `ValueError` if the text is no JSON."""
        yield from self._changed(from_json(self._text, allow_inf_nan=False))

    def _changed(self, value: object) -> Iterator[Any]:
        if value != self._last:
            self._last = value
            yield value


class ObjectStream:
    """What a variable's JSON text says so far, for `for` and `async for`; each time anew."""

    def __init__(
        self, pieces: Callable[[], Iterator[str]], pieces_async: Callable[[], AsyncIterator[str]]
    ) -> None:
        self._pieces = pieces
        self._pieces_async = pieces_async

    def __iter__(self) -> Iterator[Any]:
        json = PartialJson()
        for piece in self._pieces():
            yield from json.feed(piece)
        yield from json.end()

    async def __aiter__(self) -> AsyncIterator[Any]:
        json = PartialJson()
        async for piece in self._pieces_async():
            for value in json.feed(piece):
                yield value
        for value in json.end():
            yield value
