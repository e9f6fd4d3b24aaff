"""Reading a program's state: variables, text, messages, streams; appends nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from espalier.runtime.programs.stream import Stream
from espalier.runtime.programs.values import MetaInfo, Segment, UsageTotals, Variable
from espalier.runtime.programs.waiting import Log, wait_async

from .partial_json import ObjectStream
from .reading import blocking_wait, reading

T = TypeVar("T")


class StateView:
    """What a program has written so far. A read waits for what it reads, and raises the
    error that prevented it, with the traceback of where that happened."""

    def __init__(self, stream: Stream, *, may_block: bool) -> None:
        self._stream = stream
        self._may_block = may_block

    def __getitem__(self, name: str) -> Any:
        """The value of a variable: text, a typed value, or a list (`n` > 1, `join`)."""
        with self._reading():
            variable = self._variable(name)
            self._wait(variable.done)
            return variable.value()

    async def get_async(self, name: str) -> Any:
        """`state[name]` for async functions."""
        with self._reading():
            variable = self._variable(name)
            await wait_async(variable.done)
            return variable.value()

    def __contains__(self, name: object) -> bool:
        return name in self._stream.variables

    def get_meta_info(self, name: str) -> MetaInfo:
        """How a variable came about: a `GenInfo` or `SelectInfo`, a list of them where the
        variable is a list, None where the program set it."""
        with self._reading():
            variable = self._variable(name)
            self._wait(variable.done)
            return variable.info()

    def text(self) -> str:
        """All text so far: constants, the template's markers, and what was generated."""
        with self._reading():
            return "".join(
                piece for segment in self._segments() for piece in segment.text.read(self._wait)
            )

    async def text_async(self) -> str:
        """`text()` for async functions."""
        return "".join([piece async for piece in self.text_async_iter()])

    def messages(self) -> list[dict[str, str]]:
        """The messages that are complete, each with `role` and `content`."""
        found: list[dict[str, str]] = []
        content: list[str] = []
        with self._reading():
            for segment in self._segments():
                text = "".join(segment.text.read(self._wait))
                if segment.kind == "open":
                    content = []
                elif segment.kind == "content":
                    content.append(text)
                else:
                    found.append({"role": segment.role, "content": "".join(content)})
        return found

    def text_iter(self, name: str | None = None) -> Iterator[str]:
        """The text, or that of variable `name`, as it comes; together it is the whole text."""
        with self._reading():
            if name is None:
                for segment in self._segments():
                    yield from segment.text.read(self._wait)
            else:
                yield from self._text_log(name).read(self._wait)

    async def text_async_iter(self, name: str | None = None) -> AsyncIterator[str]:
        """`text_iter` for async functions."""
        with self._reading():
            if name is None:
                async for segment in self._segments_async():
                    async for piece in segment.text.read_async():
                        yield piece
            else:
                log = await self._text_log_async(name)
                async for piece in log.read_async():
                    yield piece

    def stream_object(self, name: str) -> ObjectStream:
        """The JSON value that variable `name` becomes, again and again while it is written.

        For `for` and, in async functions, `async for`. Plain values (dict, list, str, ...), the
        last one the whole; `state[name]` is the object of the type. Strings come as far as they
        are written, numbers when they have ended. Raises `ValueError` if the text is no JSON.
        """
        return ObjectStream(
            lambda: self.text_iter(name),
            lambda: self.text_async_iter(name),
        )

    def usage(self) -> UsageTotals:
        """What the program's `gen`s have cost so far, those of all branches included."""
        return self._stream.lane.record.usage.totals

    def _segments(self) -> Iterator[Segment]:
        """The segments that are there now; raises what ended the stream, if anything has."""
        yield from self._stream.lane.segments.so_far()
        if self._stream.lane.error is not None:
            raise self._stream.lane.error

    async def _segments_async(self) -> AsyncIterator[Segment]:
        for segment in self._segments():
            yield segment

    def _variable(self, name: str) -> Variable:
        variables = self._stream.variables
        if name not in variables:
            known = ", ".join(map(repr, variables)) or "none"
            raise KeyError(f"the program has no variable {name!r}; it has: {known}")
        return variables[name]

    def _text_log(self, name: str) -> Log[str]:
        log = self._variable(name).text
        if log is None:
            raise ValueError(f"variable {name!r} is not one text that could be streamed")
        return log

    async def _text_log_async(self, name: str) -> Log[str]:
        return self._text_log(name)

    def _wait(self, future: Future[T]) -> T:
        return blocking_wait(future, self._may_block)

    def _reading(self) -> AbstractContextManager[None]:
        return reading(self._stream.lane.record)
