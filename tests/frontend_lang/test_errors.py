"""What a failing program looks like from every side: raised where it is read, never a hang.

Every wait here is under the module's deadline, which ends the test run.
"""

from __future__ import annotations

import threading
import traceback

import pytest

from espalier.frontend_lang import ProgramState, function, gen, select
from espalier.frontend_lang.run import ProgramRun
from espalier.runtime.errors import EngineClosed, InvalidRequest, RequestFailed
from espalier.runtime.programs.executor import Executor
from tests.scripted_backend import Answer, Gate, ScriptedBackend, answer

pytestmark = pytest.mark.timeout(20, method="thread")


def failing(prompt: str, call: object) -> Answer:
    """Fails on prompts that end in "bad"."""
    if prompt.endswith("bad"):
        return answer("some ", error=RequestFailed("the step failed"))
    return answer("fine")


@function
def bad(s: ProgramState) -> None:
    s += "bad" + gen("x")


def test_run_raises_the_backend_s_error() -> None:
    with (
        Executor(ScriptedBackend(failing)) as executor,
        pytest.raises(RequestFailed, match="the step failed"),
    ):
        bad.run(backend=executor)


def test_a_read_raises_the_original_error_with_its_traceback_and_the_statement() -> None:
    @function
    def program(s: ProgramState) -> None:
        s += "bad" + gen("x")
        s["x"]

    with (
        Executor(ScriptedBackend(failing)) as executor,
        pytest.raises(RequestFailed, match="the step failed") as raised,
    ):
        program.run(backend=executor)
    shown = "".join(traceback.format_exception(raised.value))
    assert "in _answer" in shown  # where the backend raised it
    line = program.__wrapped__.__code__.co_firstlineno + 2  # type: ignore[attr-defined]
    assert f"in the node that was created at {__file__}:{line}" in shown


def test_every_read_after_an_error_raises_it_and_nothing_hangs() -> None:
    @function
    def program(s: ProgramState) -> str:
        s += "ok" + gen("before") + "bad" + gen("x")
        for read in (
            lambda: s["x"],
            lambda: s.text(),
            lambda: s.messages(),
            lambda: s.sync(),
            lambda: s.get_meta_info("x"),
            lambda: list(s.text_iter()),
            lambda: list(s.text_iter("x")),
        ):
            with pytest.raises(RequestFailed, match="the step failed"):
                read()
        s += "more"
        with pytest.raises(RequestFailed):
            s.sync()
        s += gen("y") + select("z", ["a", "b"])
        for name in ("y", "z"):
            with pytest.raises(RequestFailed):
                s[name]
        branches = s.fork(2)
        branches += gen("w")
        with pytest.raises(RequestFailed):
            branches[1]["w"]
        with pytest.raises(RequestFailed):
            branches.join()
        assert isinstance(s.error(), RequestFailed)
        return str(s["before"])

    with Executor(ScriptedBackend(failing)) as executor:
        run = program.run(backend=executor)
    assert run.return_value == "fine"


def test_an_error_that_the_program_never_met_is_raised_at_its_end() -> None:
    @function
    def program(s: ProgramState) -> None:
        s += "ok" + gen("x")
        assert s["x"] == "fine"
        s += "bad" + gen("y")

    with Executor(ScriptedBackend(failing)) as executor, pytest.raises(RequestFailed):
        program.run(backend=executor)


def test_an_error_of_user_code_propagates_and_cancels_what_runs() -> None:
    backend = ScriptedBackend(lambda prompt, call: answer("never", gates={0: Gate()}))

    @function
    def program(s: ProgramState) -> None:
        branches = s.fork(3)
        branches += gen("x")
        s += gen("x")
        with s.user():
            raise ZeroDivisionError("mine")

    with Executor(backend) as executor:
        with pytest.raises(ZeroDivisionError, match="mine"):
            program.run(backend=executor)
        assert backend.num_running == 0


def test_text_iter_of_a_streamed_run_raises_at_its_place() -> None:
    with Executor(ScriptedBackend(failing)) as executor:
        run = bad.run(backend=executor, stream=True)
        seen: list[str] = []
        with pytest.raises(RequestFailed):
            seen.extend(run.text_iter())
            pytest.fail("the iterator ended")
        assert list_until_error(run) == ["bad", "some "]
        with pytest.raises(RequestFailed):
            list(run.text_iter("x"))
        for read in (run.sync, run.text, lambda: run["x"], lambda: run.return_value):
            with pytest.raises(RequestFailed):
                read()
        with pytest.raises(RequestFailed):
            run["never submitted"]
        assert isinstance(run.error(), RequestFailed)


def list_until_error(run: ProgramRun) -> list[str]:
    pieces: list[str] = []
    with pytest.raises(RequestFailed):
        for piece in run.text_iter():
            pieces.append(piece)
    return pieces


def test_a_streamed_run_whose_function_raises() -> None:
    @function
    def program(s: ProgramState) -> None:
        s += "a"
        raise ZeroDivisionError("mine")

    with Executor(ScriptedBackend()) as executor:
        run = program.run(backend=executor, stream=True)
        with pytest.raises(ZeroDivisionError):
            list(run.text_iter())
        with pytest.raises(ZeroDivisionError):
            run.sync()


def test_an_error_that_only_the_caller_has_met_still_ends_the_run() -> None:
    caller_has_met_it = threading.Event()

    @function
    def program(s: ProgramState) -> None:
        s += "bad" + gen("x")
        caller_has_met_it.wait()

    with Executor(ScriptedBackend(failing)) as executor:
        run = program.run(backend=executor, stream=True)
        with pytest.raises(RequestFailed):
            list(run.text_iter("x"))
        caller_has_met_it.set()
        with pytest.raises(RequestFailed):
            run.sync()


def test_variables_from_before_the_error_can_still_be_read() -> None:
    @function
    def program(s: ProgramState) -> None:
        s += "ok" + gen("x") + "bad" + gen("y")

    with Executor(ScriptedBackend(failing)) as executor:
        run = program.run(backend=executor, stream=True)
        assert run["x"] == "fine"
        assert isinstance(run.error(), RequestFailed)


def test_a_backend_that_ends_without_a_finish_is_an_error() -> None:
    class Mute(ScriptedBackend):
        async def generate(self, call):  # type: ignore[no-untyped-def]
            return
            yield

    @function
    def program(s: ProgramState) -> None:
        s += gen("x")

    with Executor(Mute()) as executor, pytest.raises(RequestFailed, match="without a finish"):
        program.run(backend=executor)


def test_closing_the_engine_ends_running_programs_with_a_clear_error() -> None:
    backend = ScriptedBackend(lambda prompt, call: answer("a", "b", gates={1: Gate()}))

    @function
    def program(s: ProgramState) -> None:
        branches = s.fork(4)
        branches += gen("x")
        branches.join()

    executor = Executor(backend)
    run = program.run(backend=executor, stream=True)
    other = bad.run(backend=executor, stream=True)
    assert next(other.text_iter("x")) == "a"
    executor.close()
    executor.close()
    assert backend.num_running == 0
    for ended in (run, other):
        error = ended.error()
        assert error is not None
        assert isinstance(error, EngineClosed) or isinstance(error.__cause__, EngineClosed)
    with pytest.raises(EngineClosed):
        bad.run(backend=executor)


def test_a_state_is_of_no_use_after_its_run() -> None:
    kept: list[ProgramState] = []

    @function
    def program(s: ProgramState) -> None:
        s += gen("x")
        kept.append(s)

    with Executor(ScriptedBackend()) as executor:
        program.run(backend=executor)
        assert kept[0]["x"] == "ok"
        with pytest.raises(InvalidRequest, match="has ended"):
            kept[0] += "more"
