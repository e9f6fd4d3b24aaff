"""Async programs, and sync ones under an event loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from espalier.frontend_lang import ProgramState, function, gen
from espalier.runtime.errors import RequestFailed
from espalier.runtime.programs.errors import BranchError
from espalier.runtime.programs.executor import Executor
from tests.scripted_backend import Answer, Gate, ScriptedBackend, answer

pytestmark = pytest.mark.timeout(60, method="thread")


@function
async def chat(s: ProgramState, question: str) -> str:
    s.user(question)
    s.assistant(gen("x"))
    assert await s.get_async("x") == "ok"
    branches = s.fork(2)
    branches += gen("y")
    await branches.join_async()
    await s.sync_async()
    assert "".join([piece async for piece in s.text_async_iter()]) == await s.text_async()
    async with s.copy() as branch:
        branch += gen("z")
    return f"{await s.get_async('y')} {await s.get_async('z')}"


def test_an_async_program_from_async_and_from_sync_code() -> None:
    async def main(executor: Executor) -> None:
        run = await chat.run_async("Q", backend=executor)
        assert run.return_value == "['ok', 'ok'] ['ok']"
        assert await run.get_async("x") == run["x"] == "ok"

    with Executor(ScriptedBackend()) as executor:
        asyncio.run(main(executor))
        assert chat.run("Q", backend=executor)["x"] == "ok"
        assert chat.run("Q", backend=executor, stream=True).return_value is not None


def test_hundreds_of_async_programs_share_one_loop_and_no_threads() -> None:
    num_threads: list[int] = []
    gate = Gate()

    def script(prompt: str, call: object) -> Answer:
        if len(backend.calls) == 500:
            num_threads.append(threading.active_count())
            gate.open()
        return answer(prompt, gates={0: gate})

    backend = ScriptedBackend(script)

    @function
    async def program(s: ProgramState, index: int) -> str:
        s += f"{index}" + gen("x")
        return str(await s.get_async("x"))

    async def main(executor: Executor) -> list[str]:
        runs = [program.run_async(index, backend=executor) for index in range(500)]
        return [run.return_value for run in await asyncio.gather(*runs)]

    before = threading.active_count()
    with Executor(backend) as executor:
        assert asyncio.run(main(executor)) == [str(index) for index in range(500)]
    assert num_threads == [before + 1]


def test_streaming_in_async_code() -> None:
    gate = Gate()
    backend = ScriptedBackend(lambda prompt, call: answer("one ", "two", gates={1: gate}))

    @function
    async def program(s: ProgramState) -> None:
        s += "a" + gen("x")

    async def main(executor: Executor) -> None:
        run = await program.run_async(backend=executor, stream=True)
        pieces = run.text_async_iter("x")
        assert await anext(pieces) == "one "
        gate.open()
        assert [piece async for piece in pieces] == ["two"]
        assert await run.text_async() == "aone two"
        await run.sync_async()

    with Executor(backend) as executor:
        asyncio.run(main(executor))


def test_a_blocking_read_in_an_async_program_is_refused() -> None:
    gate = Gate()
    backend = ScriptedBackend(lambda prompt, call: answer("ok", gates={0: gate}))

    @function
    async def program(s: ProgramState) -> None:
        s += gen("x")
        branches = s.fork(1)
        branches += gen("y")
        for read in (lambda state=s: state["x"], s.text, s.sync, branches.join):
            with pytest.raises(RuntimeError, match="would block the event loop"):
                read()
        gate.open()
        assert await s.get_async("x") == s["x"] == "ok"

    with Executor(backend) as executor:
        program.run(backend=executor)


def test_errors_are_raised_where_they_are_awaited() -> None:
    def script(prompt: str, call: object) -> Answer:
        return answer("x", error=RequestFailed("no") if prompt.endswith("bad") else None)

    @function
    async def program(s: ProgramState) -> str:
        branches = s.fork(2)
        branches[1] += "bad" + gen("x")
        with pytest.raises(BranchError) as raised:
            await branches.join_async()
        s += "bad" + gen("x")
        for read in (s.get_async("x"), s.sync_async(), s.text_async()):
            with pytest.raises(RequestFailed):
                await read
        with pytest.raises(RequestFailed):
            async for _ in s.text_async_iter("x"):
                pass
        return f"branch {raised.value.index}"

    @function
    async def unmet(s: ProgramState) -> None:
        s += "bad" + gen("x")

    async def main(executor: Executor) -> None:
        run = await program.run_async(backend=executor)
        assert run.return_value == "branch 1"
        with pytest.raises(RequestFailed):
            await unmet.run_async(backend=executor)
        run = await unmet.run_async(backend=executor, stream=True)
        with pytest.raises(RequestFailed):
            _ = [piece async for piece in run.text_async_iter()]

    with Executor(ScriptedBackend(script)) as executor:
        asyncio.run(main(executor))


def test_cancelling_an_async_run_aborts_its_requests() -> None:
    started = threading.Event()

    def script(prompt: str, call: object) -> Answer:
        started.set()
        return answer("never", gates={0: Gate()})

    backend = ScriptedBackend(script)

    @function
    async def program(s: ProgramState) -> None:
        s += gen("x")
        await s.get_async("x")

    async def main(executor: Executor) -> None:
        task = asyncio.create_task(program.run_async(backend=executor))
        await asyncio.to_thread(started.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (backend.num_running, backend.num_aborted) == (0, 1)

    with Executor(backend) as executor:
        asyncio.run(main(executor))


def test_cancelling_one_reader_leaves_the_variable_to_the_others() -> None:
    gate = Gate()
    backend = ScriptedBackend(lambda prompt, call: answer("ok", gates={0: gate}))

    @function
    async def program(s: ProgramState) -> None:
        s += gen("x")
        first = asyncio.create_task(s.get_async("x"))
        second = asyncio.create_task(s.get_async("x"))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        gate.open()
        assert await second == "ok"

    with Executor(backend) as executor:
        program.run(backend=executor)


def test_a_sync_program_under_an_event_loop() -> None:
    @function
    def program(s: ProgramState, text: str) -> str:
        s += text + gen("x")
        if text == "bad":
            raise ZeroDivisionError
        return str(s["x"])

    async def main(executor: Executor) -> None:
        runs = [program.run_async("a", backend=executor) for _ in range(20)]
        assert {run.return_value for run in await asyncio.gather(*runs)} == {"ok"}
        with pytest.raises(ZeroDivisionError):
            await program.run_async("bad", backend=executor)
        with pytest.raises(RuntimeError, match="run_async"):
            chat.run("Q", backend=executor)

    with Executor(ScriptedBackend()) as executor:
        asyncio.run(main(executor))
