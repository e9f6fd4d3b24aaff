"""The executor: its one thread, its end, and backends that misbehave."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from typing import Any

import pytest

from espalier.runtime.errors import EngineClosed, InvalidRequest, RequestAborted
from espalier.runtime.programs.backend import GenerateCall, GenerateChunk
from espalier.runtime.programs.executor import Executor
from espalier.runtime.programs.ir import Append, Gen, Join
from espalier.runtime.programs.ir import Fork as ForkNode
from espalier.runtime.programs.waiting import Log, wait, wait_async
from espalier.runtime.sampling.params import SamplingParams
from tests.interrupts import main_thread_interruptible
from tests.scripted_backend import Answer, Gate, ScriptedBackend, answer

pytestmark = pytest.mark.timeout(20, method="thread")

GEN = Gen(name="x", sampling=SamplingParams())


def test_the_thread_starts_with_the_first_node_and_ends_with_close() -> None:
    before = threading.active_count()
    executor = Executor(ScriptedBackend())
    stream = executor.open_stream()
    assert threading.active_count() == before
    stream.submit(GEN, origin="here")
    assert threading.active_count() == before + 1
    executor.close()
    assert threading.active_count() == before


def test_close_of_an_executor_that_never_ran() -> None:
    executor = Executor(ScriptedBackend())
    executor.close()
    with pytest.raises(EngineClosed):
        executor.open_stream().submit(Append("a"), origin="here")


def test_close_while_somebody_waits_for_the_end_of_a_program() -> None:
    backend = ScriptedBackend(lambda prompt, call: answer("x", gates={0: Gate()}))
    executor = Executor(backend)
    stream = executor.open_stream()
    forked = stream.fork(ForkNode(3), origin="here")
    for branch in forked.streams:
        branch.submit(GEN, origin="here")
    stream.join(Join(), forked, origin="here")
    done = executor.run(stream.lane.finish())
    executor.close()
    with pytest.raises(EngineClosed):
        wait(done)
    with pytest.raises(EngineClosed):
        wait(stream.variables["x"].done)
    assert backend.num_running == 0


def test_a_close_that_is_interrupted_ends_the_loop_all_the_same() -> None:
    """As by a second Ctrl-C; the close at the interpreter's exit must not wait for ever then."""
    main, before = threading.get_ident(), threading.active_count()
    released: Future[None] = Future()

    async def interrupt_and_wait() -> None:
        frames = sys._current_frames  # pyright: ignore[reportPrivateUsage]
        while frames()[main].f_code.co_name != "wait":
            await asyncio.sleep(0)
        interrupt()
        await asyncio.wrap_future(released)

    executor = Executor(ScriptedBackend(), at_end=interrupt_and_wait)
    executor.open_stream().submit(GEN, origin="here")
    with main_thread_interruptible() as interrupt, pytest.raises(KeyboardInterrupt):
        executor.close()
    released.set_result(None)
    executor.close()
    assert threading.active_count() == before


def test_a_forked_process_may_close_its_parent_s_executor() -> None:
    """As it does when it ends by `sys.exit`: it must not wait for a thread that it hasn't got."""
    executor = Executor(ScriptedBackend())
    wait(executor.run(asyncio.sleep(0)))
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        executor.close()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    wait(executor.run(asyncio.sleep(0)))
    executor.close()


def test_a_stream_is_idle_between_nodes_and_starts_again() -> None:
    with Executor(ScriptedBackend(lambda prompt, call: prompt)) as executor:
        stream = executor.open_stream()
        for _ in range(3):
            stream.submit(Append("a"), origin="here")
            wait(executor.run(stream.lane.sync()))
        stream.submit(GEN, origin="here")
        assert stream.variables["x"].done.result() is not None
        assert stream.variables["x"].value() == "aaa"


def test_a_join_in_the_stream_waits_and_fails_with_its_branches() -> None:
    gate = Gate()

    def script(prompt: str, call: GenerateCall) -> Answer:
        return answer("x", gates={0: gate}, error=InvalidRequest("no") if prompt == "1" else None)

    with Executor(ScriptedBackend(script)) as executor:
        stream = executor.open_stream()
        forked = stream.fork(ForkNode(2), origin="here")
        for index, branch in enumerate(forked.streams):
            branch.submit(Append(f"{index}"), origin="here")
            branch.submit(GEN, origin="here")
        stream.join(Join(), forked, origin="there")
        gate.open()
        error = stream.variables["x"].done.exception()
        assert str(error) == "branch 1 failed: InvalidRequest: no"
        assert isinstance(error, BaseException) and error.__notes__ == [
            "in the node that was created at there"
        ]


def test_a_backend_that_cancels_its_own_request_leaves_nobody_waiting() -> None:
    class Cancelling(ScriptedBackend):
        async def generate(self, call: GenerateCall) -> AsyncGenerator[GenerateChunk]:
            raise asyncio.CancelledError
            yield

    with Executor(Cancelling()) as executor:
        stream = executor.open_stream()
        stream.submit(GEN, origin="here")
        with pytest.raises(RequestAborted, match="cancelled"):
            wait(stream.variables["x"].done)


def test_an_error_that_comes_when_its_waiter_has_gone_is_nobody_s() -> None:
    reported: list[dict[str, Any]] = []

    async def main() -> None:
        shared: Future[None] = Future()
        asyncio.get_running_loop().set_exception_handler(lambda _, what: reported.append(what))
        waiter = asyncio.create_task(wait_async(shared))
        await asyncio.sleep(0)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        shared.set_exception(InvalidRequest("too late"))
        with pytest.raises(InvalidRequest):
            await wait_async(shared)

    asyncio.run(main())
    gc.collect()
    assert reported == []


def test_every_reader_of_a_log_sees_everything_and_its_end() -> None:
    log: Log[int] = Log([1])
    seen: list[list[int]] = [[], []]

    def read(into: list[int]) -> None:
        into.extend(log.read(wait))

    threads = [threading.Thread(target=read, args=(into,)) for into in seen]
    for thread in threads:
        thread.start()
    for item in range(2, 100):
        log.append(item)
    log.end()
    log.end(ValueError("only the first end counts"))
    for thread in threads:
        thread.join()
    assert seen == [list(range(1, 100))] * 2
    assert list(log.read(wait)) == seen[0]


def test_a_log_s_error_comes_after_its_items() -> None:
    log: Log[int] = Log([1, 2])
    log.end(ValueError("cut"))
    reader = log.read(wait)
    assert [next(reader), next(reader)] == [1, 2]
    with pytest.raises(ValueError, match="cut"):
        next(reader)
