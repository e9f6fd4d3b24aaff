"""Waiting for the executor from any thread or event loop; knows nothing of programs.

The executor's loop writes; readers may be threads that block or coroutines of other loops.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Wait = Callable[["Future[Any]"], Any]


def wait(future: Future[T]) -> T:
    """Block this thread until `future` is done; its result, or its error raised."""
    return future.result()


async def wait_async(future: Future[T]) -> T:
    """`wait` for a coroutine. Cancelling the waiter leaves the shared future alone."""
    here = asyncio.wrap_future(future)
    here.add_done_callback(_retrieve)
    return await asyncio.shield(here)


class Log(Generic[T]):
    """An append-only list that ends once, with or without an error; any number of readers.

    Each reader sees every item from the first; at the end it stops, or raises the error.
    """

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._lock = threading.Lock()
        self._items = list(items)
        self._ended = False
        self._error: BaseException | None = None
        self._waiters: list[Future[None]] = []

    def append(self, item: T) -> None:
        with self._lock:
            assert not self._ended, "append to a log that has ended"
            self._items.append(item)
            waiters, self._waiters = self._waiters, []
        _wake(waiters)

    def end(self, error: BaseException | None = None) -> None:
        """No items come after these; the first call decides."""
        with self._lock:
            if self._ended:
                return
            self._ended, self._error = True, error
            waiters, self._waiters = self._waiters, []
        _wake(waiters)

    def so_far(self) -> tuple[T, ...]:
        with self._lock:
            return tuple(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def read(self, wait: Wait) -> Iterator[T]:
        """The items as they come; `wait` blocks on a future."""
        position = 0
        while True:
            news = self._news_after(position)
            if isinstance(news, Future):
                wait(news)
                continue
            if not news:
                return
            position += len(news)
            yield from news

    async def read_async(self) -> AsyncIterator[T]:
        position = 0
        while True:
            news = self._news_after(position)
            if isinstance(news, Future):
                await wait_async(news)
                continue
            if not news:
                return
            position += len(news)
            for item in news:
                yield item

    def _news_after(self, position: int) -> list[T] | Future[None]:
        """The items from `position`, none at the end; where there are none yet, a future."""
        with self._lock:
            if position < len(self._items):
                return self._items[position:]
            if not self._ended:
                waiter: Future[None] = Future()
                self._waiters.append(waiter)
                return waiter
        if self._error is not None:
            raise self._error
        return []


def _retrieve(future: asyncio.Future[Any]) -> None:
    """The error is also the shared future's: asyncio need not tell of it where the waiter went."""
    if not future.cancelled():
        future.exception()


def _wake(waiters: list[Future[None]]) -> None:
    for waiter in waiters:
        waiter.set_result(None)
