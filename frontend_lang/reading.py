"""How a program's reads wait, and what they do with the errors that they raise."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from espalier.runtime.programs.values import RunRecord
from espalier.runtime.programs.waiting import wait

T = TypeVar("T")


def blocking_wait(future: Future[T], may_block: bool) -> T:
    """The result of `future`; async functions may only take what is already there."""
    if not may_block and not future.done():
        raise RuntimeError(
            "this read would block the event loop of an async function: "
            "await get_async(), text_async(), sync_async() or join_async()"
        )
    return wait(future)


@contextmanager
def reading(record: RunRecord) -> Generator[None]:
    """A program that met an error at a read need not be told of it again at its end."""
    try:
        yield
    except Exception as error:
        record.acknowledge(error)
        raise
