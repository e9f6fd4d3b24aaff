"""Turns: one job that is not demoted at a time, few beside it, in the order of arrival."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.runtime.grammar.turns import Turn, Turns

FOREVER_S = 1000.0
MAX_DEMOTED = 2


class Jobs:
    """Jobs that end when they are told to."""

    def __init__(self) -> None:
        self.turns = Turns(MAX_DEMOTED)
        self.began: list[int] = []
        self.running: dict[int, Turn] = {}
        self._ends: dict[int, asyncio.Event] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}

    def arrive(self) -> int:
        number = len(self.tasks)
        self._ends[number] = asyncio.Event()
        self.tasks[number] = asyncio.get_running_loop().create_task(self._run(number))
        return number

    async def _run(self, number: int) -> None:
        async with self.turns.take(FOREVER_S) as turn:
            self.began.append(number)
            self.running[number] = turn
            try:
                await self._ends[number].wait()
            finally:
                del self.running[number]

    def end(self, number: int) -> None:
        self._ends[number].set()

    @property
    def open(self) -> list[int]:
        return [number for number, task in self.tasks.items() if not task.done()]


async def settle() -> None:
    """Until every task has gone as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(coroutine)


def test_a_job_that_is_demoted_stands_in_nobodys_way() -> None:
    async def scene() -> None:
        jobs = Jobs()
        first, second = jobs.arrive(), jobs.arrive()
        await settle()
        assert jobs.began == [first] and jobs.turns.num_waiting == 1
        jobs.turns.demote(jobs.running[first])
        await settle()
        assert jobs.began == [first, second] and jobs.turns.num_running == 2
        for number in jobs.open:
            jobs.end(number)
        await settle()
        assert not jobs.open

    run(scene())


def test_who_can_t_wait_longer_leaves_the_queue() -> None:
    async def scene() -> None:
        jobs = Jobs()
        first = jobs.arrive()
        await settle()
        with pytest.raises(TimeoutError):
            async with jobs.turns.take(0.0):
                raise AssertionError("there is no turn to have")
        assert jobs.turns.num_waiting == 0
        jobs.end(first)
        await jobs.tasks[first]
        async with jobs.turns.take(FOREVER_S):
            assert jobs.turns.num_running == 1
        assert jobs.turns.num_running == 0

    run(scene())


@given(st.lists(st.tuples(st.sampled_from(["arrive", "demote", "end", "cancel"]), st.integers(0))))
@settings(max_examples=200, deadline=None)
def test_any_order_of_events(events: list[tuple[str, int]]) -> None:
    async def scene() -> None:
        jobs = Jobs()
        for event, pick in events:
            running = list(jobs.running)
            if event == "arrive":
                jobs.arrive()
            elif event == "cancel" and jobs.open:
                jobs.tasks[jobs.open[pick % len(jobs.open)]].cancel()
            elif event == "demote" and running:
                jobs.turns.demote(jobs.running[running[pick % len(running)]])
            elif event == "end" and running:
                jobs.end(running[pick % len(running)])
            await settle()
            demoted = [turn.is_demoted for turn in jobs.running.values()]
            assert len(demoted) <= MAX_DEMOTED + 1 and demoted.count(False) <= 1
            has_room = all(demoted) and len(demoted) <= MAX_DEMOTED
            assert jobs.turns.num_waiting == len(jobs.open) - len(demoted)
            assert not (has_room and jobs.turns.num_waiting), "a job waits for nothing"
            assert jobs.began == sorted(jobs.began), "one has overtaken another"
        for number in jobs.open:
            jobs.tasks[number].cancel()
        await settle()
        assert jobs.turns.num_running == jobs.turns.num_waiting == 0

    run(scene())
