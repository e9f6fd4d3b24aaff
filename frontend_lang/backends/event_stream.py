"""Server-sent events: from the bytes of a response to each event's data; knows no JSON.

Lines end at line feeds alone (a carriage return before one is dropped): the other ends of
lines that text libraries know, such as U+2028, may stand inside the data.
"""

from __future__ import annotations


class EventReader:
    """Takes a stream in whatever chunks it comes; the time is linear in its length."""

    def __init__(self) -> None:
        self._line: list[bytes] = []  # the line that has not ended yet
        self._data: list[bytes] = []  # of the event that has not ended yet

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that end in `chunk`."""
        first, *others = chunk.split(b"\n")
        self._line.append(first)
        if not others:
            return []
        lines = [b"".join(self._line), *others]
        self._line = [lines.pop()]
        events: list[bytes] = []
        for line in lines:
            field = line.removesuffix(b"\r")
            if field.startswith(b"data:"):
                self._data.append(field[5:].removeprefix(b" "))
            elif not field and self._data:
                events.append(b"\n".join(self._data))
                self._data = []
        return events
