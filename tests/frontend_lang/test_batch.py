"""run_batch: order, errors of items, bounds, iterators, and what interrupts it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from typing import Any, cast

import pytest

from espalier.frontend_lang import (
    BatchFailed,
    Function,
    ProgramState,
    function,
    gen,
    set_default_backend,
)
from espalier.runtime.errors import InvalidRequest, RequestAborted, RequestFailed
from espalier.runtime.programs.backend import GenerateCall
from espalier.runtime.programs.executor import Executor
from tests.interrupts import main_thread_interruptible
from tests.scripted_backend import Answer, Gate, ScriptedBackend, answer

pytestmark = pytest.mark.timeout(60, method="thread")


@function
def echo(s: ProgramState, text: str) -> str:
    s += text + gen("x")
    return str(s["x"])


@function
async def echo_async(s: ProgramState, text: str) -> str:
    s += text + gen("x")
    return str(await s.get_async("x"))


BOTH = pytest.mark.parametrize("program", [echo, echo_async], ids=["sync", "async"])
Echo = Function[..., object]


def script(prompt: str, call: GenerateCall) -> Answer:
    return answer(f"<{prompt}>", error=RequestFailed("no") if prompt.startswith("bad") else None)


def items(*texts: str) -> list[dict[str, str]]:
    return [{"text": text} for text in texts]


@BOTH
def test_runs_are_in_the_order_of_the_items_whatever_ends_first(program: Echo) -> None:
    gates = [Gate() for _ in range(4)]

    def backwards(prompt: str, call: GenerateCall) -> Answer:
        if len(backend.calls) == 4:
            gates[3].open()
        return answer(prompt, gates={0: gates[int(prompt)]})

    backend = ScriptedBackend(backwards)
    ended: list[str] = []

    @function
    def following(s: ProgramState, text: str) -> None:
        s += text + gen("x")
        ended.append(str(s["x"]))
        if int(text):
            gates[int(text) - 1].open()

    @function
    async def following_async(s: ProgramState, text: str) -> None:
        s += text + gen("x")
        ended.append(str(await s.get_async("x")))
        if int(text):
            gates[int(text) - 1].open()

    used = following if program is echo else following_async
    with Executor(backend) as executor:
        runs = used.run_batch(items("0", "1", "2", "3"), backend=executor)
    assert ended == ["3", "2", "1", "0"]
    assert [run["x"] for run in runs] == ["0", "1", "2", "3"]


@BOTH
def test_an_item_s_error_is_its_own(program: Echo) -> None:
    batch: list[dict[str, object]] = [
        {"text": "a"},
        {"text": "bad"},
        {},
        {"text": "b", "other": 1},
        {"text": "c", "temperature": -1.0},
        {"text": "d"},
    ]
    with Executor(ScriptedBackend(script)) as executor:
        runs = program.run_batch(batch, backend=executor, on_error="keep")
    kinds = [type(run.error()) for run in runs]
    assert kinds == [
        type(None),
        RequestFailed,
        TypeError,
        TypeError,
        InvalidRequest,
        type(None),
    ]
    assert [runs[index]["x"] for index in (0, 5)] == ["<a>", "<d>"]
    with pytest.raises(RequestFailed):
        _ = runs[1]["x"]
    for read in (runs[2].text, runs[2].sync, lambda: runs[2]["x"], lambda: runs[2].return_value):
        with pytest.raises(TypeError, match="missing a required argument: 'text'"):
            read()
    assert runs[2].usage().num_outputs == 0


@BOTH
def test_when_all_have_ended_the_failed_ones_are_raised_together(program: Echo) -> None:
    backend = ScriptedBackend(script)
    with (
        Executor(backend) as executor,
        pytest.raises(BatchFailed, match=r"2 of 4 .* item 1: RequestFailed: no") as raised,
    ):
        program.run_batch(items("a", "bad1", "b", "bad2"), backend=executor)
    error = raised.value
    assert list(error.failed) == [1, 3]
    assert error.__cause__ is error.failed[1].error()
    assert error.runs is not None and error.runs[2]["x"] == "<b>"
    assert len(backend.calls) == 4


def test_what_is_no_item_and_what_exits_are_errors_of_items() -> None:
    @function
    def program(s: ProgramState, kind: str) -> None:
        if kind == "exit":
            raise SystemExit(3)
        if kind == "cancelled":
            raise asyncio.CancelledError

    @function
    async def program_async(s: ProgramState, kind: str) -> None:
        program(s, kind)

    wrong: Any = "text"
    batch: list[dict[str, str]] = [
        {"kind": "exit"},
        wrong,
        {"kind": "cancelled"},
        {"kind": "fine"},
    ]
    with Executor(ScriptedBackend()) as executor:
        for used in (program, program_async):
            runs = used.run_batch(batch, backend=executor, on_error="keep")
            kinds = [type(run.error()) for run in runs]
            assert kinds == [RequestAborted, TypeError, RequestAborted, type(None)]


@pytest.mark.parametrize(
    "options",
    [{"on_error": "ignore"}, {"num_threads": 0}, {"num_threads": True}, {"num_threads": "many"}],
)
def test_bad_options_are_refused_before_anything_runs(options: dict[str, Any]) -> None:
    backend = ScriptedBackend()
    with Executor(backend) as executor:
        with pytest.raises(ValueError, match=next(iter(options))):
            echo.run_batch(items("a"), backend=executor, **options)
        with pytest.raises(TypeError, match="text"):
            echo.run_batch([{}], backend=executor, text="a")
    with pytest.raises(InvalidRequest, match="no backend"):
        echo.run_batch(items("a"))
    assert backend.calls == []


def test_an_empty_batch() -> None:
    with Executor(ScriptedBackend()) as executor:
        assert echo.run_batch([], backend=executor) == []
        assert list(echo.run_batch([], backend=executor, generator_style=True)) == []
        assert asyncio.run(echo_async.run_batch_async([], backend=executor)) == []


def test_sampling_of_the_item_holds_over_that_of_the_batch() -> None:
    backend = ScriptedBackend()
    batch: list[dict[str, object]] = [{"text": "a"}, {"text": "b", "max_tokens": 3}]
    with Executor(backend) as executor:
        bound = echo.bind(max_tokens=9, top_p=0.5)
        bound.run_batch(batch, backend=executor, num_threads=1, max_tokens=5)
    assert [(c.sampling.max_new_tokens, c.sampling.top_p) for c in backend.calls] == [
        (5, 0.5),
        (3, 0.5),
    ]


def test_the_default_backend_of_the_caller_is_used_in_all_threads() -> None:
    @function
    def outer(s: ProgramState, text: str) -> str:
        return str(echo.run(text)["x"])

    with Executor(ScriptedBackend(script)) as executor:
        set_default_backend(executor)
        try:
            runs = outer.run_batch(items("a", "b"))
        finally:
            set_default_backend(None)
    assert [run.return_value for run in runs] == ["<a>", "<b>"]


@BOTH
@pytest.mark.parametrize(("num_threads", "expected"), [("auto", 64), (5, 5), (500, 100)])
def test_so_many_run_at_one_time(program: Echo, num_threads: object, expected: int) -> None:
    gate = Gate()
    seen: list[int] = []

    def counting(prompt: str, call: GenerateCall) -> Answer:
        seen.append(backend.num_running)
        if len(backend.calls) == expected:
            gate.open()
        return answer("ok", gates={0: gate})

    backend = ScriptedBackend(counting)
    with Executor(backend) as executor:
        runs = program.run_batch(
            items(*["t"] * 100), backend=executor, num_threads=cast(Any, num_threads)
        )
    assert len(runs) == 100
    assert max(seen) == expected


def test_a_batch_of_async_programs_needs_two_threads() -> None:
    gate = Gate()
    num_threads: list[int] = []

    def counting(prompt: str, call: GenerateCall) -> Answer:
        if len(backend.calls) == 300:
            num_threads.append(threading.active_count())
            gate.open()
        return answer("ok", gates={0: gate})

    backend = ScriptedBackend(counting)
    before = threading.active_count()
    with Executor(backend) as executor:
        echo_async.run_batch(items(*["t"] * 300), backend=executor, num_threads=300)
    assert num_threads == [before + 2]  # the executor's, and that of the programs' loop
    assert threading.active_count() == before


@BOTH
def test_an_iterator_gives_runs_in_order_while_later_ones_go_on(program: Echo) -> None:
    gates = {"0": Gate(), "1": Gate()}
    last_started = threading.Event()

    def gated(prompt: str, call: GenerateCall) -> Answer:
        if prompt == "2":
            last_started.set()
        return answer(prompt, gates={0: gates[prompt]} if prompt in gates else {})

    with Executor(ScriptedBackend(gated)) as executor:
        runs = program.run_batch(items("0", "1", "2"), backend=executor, generator_style=True)
        gates["0"].open()
        assert next(runs)["x"] == "0"
        assert last_started.wait(30)
        gates["1"].open()
        assert [run["x"] for run in runs] == ["1", "2"]


@BOTH
def test_an_iterator_starts_only_a_bounded_number_ahead(program: Echo) -> None:
    backend = ScriptedBackend()
    batch = items(*map(str, range(100)))
    with Executor(backend) as executor:
        runs = program.run_batch(batch, backend=executor, num_threads=2, generator_style=True)
        assert backend.calls == []
        next(runs)
        assert len(backend.calls) <= 8
        assert len(list(runs)) == 99


@BOTH
def test_an_iterator_raises_the_failed_ones_at_its_end(program: Echo) -> None:
    batch = items("a", "bad", "b")
    with Executor(ScriptedBackend(script)) as executor:
        runs = program.run_batch(batch, backend=executor, generator_style=True)
        assert next(runs)["x"] == "<a>"
        assert isinstance(next(runs).error(), RequestFailed)
        assert next(runs)["x"] == "<b>"
        with pytest.raises(BatchFailed) as raised:
            next(runs)
        assert (list(raised.value.failed), raised.value.runs) == ([1], None)
        kept = program.run_batch(batch, backend=executor, generator_style=True, on_error="keep")
        assert len(list(kept)) == 3


@BOTH
def test_who_leaves_an_iterator_cancels_what_runs(program: Echo) -> None:
    def gated(prompt: str, call: GenerateCall) -> Answer:
        return answer(prompt, gates={} if prompt == "0" else {0: Gate()})

    backend = ScriptedBackend(gated)
    before = threading.active_count()
    with Executor(backend) as executor:
        runs = program.run_batch(items("0", "1", "2"), backend=executor, generator_style=True)
        assert next(runs)["x"] == "0"
        cast(Generator[object], runs).close()
        assert backend.num_running == 0
    assert threading.active_count() == before


@BOTH
def test_an_interrupt_cancels_what_runs_and_starts_nothing_more(program: Echo) -> None:
    def interrupting(prompt: str, call: GenerateCall) -> Answer:
        if len(backend.calls) == 3:
            interrupt()
        return answer("never", gates={0: Gate()})

    backend = ScriptedBackend(interrupting)
    with Executor(backend) as executor:
        with main_thread_interruptible() as interrupt, pytest.raises(KeyboardInterrupt):
            program.run_batch(items(*"abcde"), backend=executor, num_threads=3)
        assert (backend.num_running, backend.num_aborted) == (0, 3)
    assert len(backend.calls) == 3


@BOTH
def test_under_an_event_loop(program: Echo) -> None:
    with Executor(ScriptedBackend(script)) as executor:
        batch = items("a", "bad", "b")
        runs = asyncio.run(program.run_batch_async(batch, backend=executor, on_error="keep"))
        assert [run["x"] for run in (runs[0], runs[2])] == ["<a>", "<b>"]
        assert isinstance(runs[1].error(), RequestFailed)
        with pytest.raises(BatchFailed, match="1 of 3"):
            asyncio.run(program.run_batch_async(batch, backend=executor))


def test_async_programs_run_on_the_loop_of_their_caller() -> None:
    loops: set[asyncio.AbstractEventLoop] = set()

    @function
    async def program(s: ProgramState) -> None:
        loops.add(asyncio.get_running_loop())

    async def main(executor: Executor) -> None:
        batch: list[dict[str, object]] = [{}, {}, {}]
        with pytest.raises(RuntimeError, match="run_batch_async"):
            program.run_batch(batch, backend=executor)
        await program.run_batch_async(batch, backend=executor)
        assert loops == {asyncio.get_running_loop()}

    with Executor(ScriptedBackend()) as executor:
        asyncio.run(main(executor))


@BOTH
def test_cancelling_an_async_batch_cancels_what_runs(program: Echo) -> None:
    started = threading.Event()

    def gated(prompt: str, call: GenerateCall) -> Answer:
        if len(backend.calls) == 2:
            started.set()
        return answer("never", gates={0: Gate()})

    backend = ScriptedBackend(gated)

    async def main(executor: Executor) -> None:
        batch = program.run_batch_async(items(*"abc"), backend=executor, num_threads=2)
        task = asyncio.create_task(batch)
        await asyncio.to_thread(started.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (backend.num_running, len(backend.calls)) == (0, 2)

    with Executor(backend) as executor:
        asyncio.run(main(executor))


def test_the_progress_bar_counts_every_item_on_standard_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    batch = items("a", "bad", "b")
    with Executor(ScriptedBackend(script)) as executor:
        echo.run_batch(batch, backend=executor, on_error="keep")
        assert capsys.readouterr().err == ""
        for _ in echo.run_batch(
            batch, backend=executor, on_error="keep", progress_bar=True, generator_style=True
        ):
            pass
        out, err = capsys.readouterr()
        assert "3/3" in err and "/s" in err and out == ""
        asyncio.run(
            echo_async.run_batch_async(batch, backend=executor, on_error="keep", progress_bar=True)
        )
        assert "3/3" in capsys.readouterr().err


def test_a_run_can_be_cancelled() -> None:
    started = threading.Event()

    def gated(prompt: str, call: GenerateCall) -> Answer:
        started.set()
        return answer("never", gates={0: Gate()})

    backend = ScriptedBackend(gated)
    with Executor(backend) as executor:
        run = echo.run("a", backend=executor, stream=True)
        assert started.wait(30)
        run.cancel()
        assert isinstance(run.error(), RequestAborted)
        assert backend.num_running == 0
    with Executor(ScriptedBackend(script)) as executor:
        ended = echo.run("a", backend=executor)
        ended.cancel()
        assert ended["x"] == "<a>" and ended.text() == "a<a>"
