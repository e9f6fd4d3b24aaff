"""Forks: what branches inherit, what a join gives back, and how one error ends them all."""

from __future__ import annotations

import threading
import traceback

import pytest

from espalier.frontend_lang import ProgramState, assistant_begin, assistant_end, function, gen
from espalier.runtime.errors import InvalidRequest, RequestFailed
from espalier.runtime.programs.backend import GenerateCall, TextPiece
from espalier.runtime.programs.errors import BranchError
from espalier.runtime.programs.executor import Executor
from tests.scripted_backend import (
    Answer,
    Gate,
    ScriptedBackend,
    ScriptedCodec,
    answer,
    byte_ids,
)

pytestmark = pytest.mark.timeout(60, method="thread")


def last_letter(prompt: str, call: GenerateCall) -> str:
    return f"<{prompt[-1]}>"


def test_branches_inherit_and_join_gathers_aligned_lists() -> None:
    backend = ScriptedBackend(last_letter)

    @function
    def program(s: ProgramState) -> None:
        s += "p" + gen("old") + gen("same")
        s["set"] = 1
        branches = s.fork(3)
        for index, branch in enumerate(branches):
            assert branch["old"] == "<p>"
            branch += f"b{index}" + gen("each")
            if index == 1:
                branch += gen("only")
                branch += gen("old")
                branch["set"] = 2
        branches.join()
        assert branches[1]["only"] == "<>>"

    with Executor(backend) as executor:
        run = program.run(backend=executor)
    assert run["each"] == ["<0>", "<1>", "<2>"]
    assert run["only"] == [None, "<>>", None]
    assert run["old"] == ["<p>", "<>>", "<p>"]  # overwritten in one: gathered from all
    assert run["set"] == [1, 2, 1]
    assert run["same"] == "<>>"
    info = run.get_meta_info("only")
    assert isinstance(info, list) and [entry is None for entry in info] == [True, False, True]
    assert run.text() == "p<p><>>"


def test_branches_copy_ids_and_pending_constants() -> None:
    backend = ScriptedBackend()

    @function
    def program(s: ProgramState) -> None:
        s += "x" + gen("x") + "a"
        branches = s.fork(2)
        branches[0] += "b" + gen("y")
        branches[1] += "x" + gen("y")
        branches.join()

    with Executor(backend) as executor:
        program.run(backend=executor)
    codec = ScriptedCodec()
    first, *children = (call.input_ids for call in backend.calls)
    expected = [
        [*first, *byte_ids("ok"), *codec.encode_pieces([TextPiece(text)])] for text in ("ab", "ax")
    ]
    assert sorted(children) == sorted(expected)


def test_concatenation_appends_text_and_generated_ids_in_order() -> None:
    gates = {"0": Gate(), "1": Gate()}

    def script(prompt: str, call: GenerateCall) -> Answer:
        gate = gates.get(prompt[-1])
        return answer(f"<{prompt[-1]}>", gates={0: gate} if gate else {})

    backend = ScriptedBackend(script)

    @function
    def program(s: ProgramState) -> None:
        s += "a"
        branches = s.fork(2)
        for index, branch in enumerate(branches):
            branch += f"b{index}" + gen("x")
        gates["1"].open()
        assert branches[1]["x"] == "<1>"
        gates["0"].open()
        branches.join("concate_and_append")
        assert "x" not in s
        s += "c" + gen("y")

    with Executor(backend) as executor:
        run = program.run(backend=executor)
    assert run.text() == "ab0<0>b1<1>c<c>"
    codec = ScriptedCodec()
    assert backend.calls[2].input_ids == [
        *codec.encode_pieces([TextPiece("ab0")]),
        *byte_ids("<0>"),
        *byte_ids("b1"),
        *byte_ids("<1>"),
        *byte_ids("c"),
    ]


def test_messages_of_branches_are_appended_too() -> None:
    backend = ScriptedBackend()

    @function
    def program(s: ProgramState) -> None:
        s.user("q")
        branches = s.fork(2)
        for branch in branches:
            branch.assistant(gen("x"))
        branches.join("concate_and_append")

    @function
    def half_open(s: ProgramState) -> None:
        branches = s.fork(2)
        branches[0] += assistant_begin()
        branches[1] += assistant_begin() + assistant_end()
        branches.join("concate_and_append")

    with Executor(backend) as executor:
        run = program.run(backend=executor)
        assert [m["role"] for m in run.messages()] == ["user", "assistant", "assistant"]
        with pytest.raises(InvalidRequest, match="branch 0 can't be appended"):
            half_open.run(backend=executor)


def test_one_error_cancels_the_siblings_and_is_raised_at_join() -> None:
    all_running = Gate()

    def script(prompt: str, call: GenerateCall) -> Answer:
        if len(backend.calls) == 4:
            all_running.open()
        if prompt.endswith("2"):
            failed = RequestFailed("the step failed")
            return answer("some", gates={0: all_running}, error=failed)
        return answer("never", gates={0: Gate()})

    backend = ScriptedBackend(script)

    @function
    def program(s: ProgramState) -> str:
        branches = s.fork(4)
        for index, branch in enumerate(branches):
            branch += f"{index}" + gen("x")
        with pytest.raises(BranchError) as raised:
            branches.join()
        assert backend.num_running == 0
        assert raised.value.index == 2
        assert isinstance(raised.value.__cause__, RequestFailed)
        shown = "".join(traceback.format_exception(raised.value))
        assert "in _answer" in shown and "created at " + __file__ in shown
        for branch in branches:
            for read in (branch.text, branch.sync, lambda b=branch: b["x"]):
                with pytest.raises(BranchError) as again:
                    read()
                assert again.value.index == 2
        s += "go on"
        return s.text()

    with Executor(backend) as executor:
        assert program.run(backend=executor).return_value == "go on"
    assert backend.num_aborted == 4


def test_a_branch_error_is_raised_at_the_first_read_of_a_branch() -> None:
    def script(prompt: str, call: GenerateCall) -> Answer:
        failed = RequestFailed("the step failed") if prompt.endswith("1") else None
        return answer("x", error=failed)

    @function
    def program(s: ProgramState) -> None:
        branches = s.fork(2)
        for index, branch in enumerate(branches):
            branch += f"{index}" + gen("x")
        branches[1]["x"]

    with Executor(ScriptedBackend(script)) as executor, pytest.raises(BranchError) as raised:
        program.run(backend=executor)
    assert raised.value.index == 1


def test_errors_of_nested_forks_name_both_branches() -> None:
    def script(prompt: str, call: GenerateCall) -> Answer:
        return answer("x", error=RequestFailed("deep") if prompt == "01" else None)

    @function
    def program(s: ProgramState) -> None:
        outer = s.fork(2)
        for index, branch in enumerate(outer):
            branch += f"{index}"
            inner = branch.fork(2)
            for inner_index, leaf in enumerate(inner):
                leaf += f"{inner_index}" + gen("x")
        outer.join()

    with Executor(ScriptedBackend(script)) as executor, pytest.raises(BranchError) as raised:
        program.run(backend=executor)
    assert raised.value.index == 0
    inner_error = raised.value.__cause__
    assert isinstance(inner_error, BranchError) and inner_error.index == 1
    assert isinstance(inner_error.__cause__, RequestFailed)


def test_branches_that_are_never_joined_are_waited_for_and_their_errors_raised() -> None:
    def script(prompt: str, call: GenerateCall) -> Answer:
        return answer("x", error=RequestFailed("late") if prompt == "bad" else None)

    backend = ScriptedBackend(script)

    @function
    def program(s: ProgramState, text: str) -> None:
        branches = s.fork(2)
        branches[1] += text + gen("x")

    with Executor(backend) as executor:
        program.run("good", backend=executor)
        assert len(backend.calls) == 1
        with pytest.raises(BranchError):
            program.run("bad", backend=executor)


def test_an_error_before_the_fork_is_not_blamed_on_a_branch() -> None:
    gate = Gate()
    backend = ScriptedBackend(
        lambda prompt, call: answer("x", gates={0: gate}, error=RequestFailed("early"))
    )

    @function
    def program(s: ProgramState) -> None:
        s += gen("x")
        branches = s.fork(2)
        branches += gen("y")
        gate.open()
        branches.join()

    with Executor(backend) as executor, pytest.raises(RequestFailed, match="early"):
        program.run(backend=executor)
    assert len(backend.calls) == 1


def test_copy_is_one_branch_joined_at_the_end_of_its_block() -> None:
    backend = ScriptedBackend(last_letter)

    @function
    def program(s: ProgramState) -> None:
        s += "a"
        with s.copy() as branch:
            branch += "b" + gen("x")
        assert s["x"] == ["<b>"]
        with pytest.raises(ZeroDivisionError), s.copy() as branch:
            branch += gen("y")
            raise ZeroDivisionError
        assert "y" not in s

    with Executor(backend) as executor:
        assert program.run(backend=executor).text() == "a"


def test_misuse_of_fork_and_join() -> None:
    @function
    def program(s: ProgramState) -> None:
        with pytest.raises(ValueError, match="at least 1"):
            s.fork(0)
        with pytest.raises(TypeError, match="integer"):
            s.fork("2")  # type: ignore[arg-type]
        branches = s.fork(2)
        with pytest.raises(ValueError, match="mode must be one of"):
            branches.join("zip")  # type: ignore[arg-type]
        branches.join()
        with pytest.raises(InvalidRequest, match="joined already"):
            branches.join()
        with pytest.raises(InvalidRequest, match="has ended"):
            branches[0] += "more"

    with Executor(ScriptedBackend()) as executor:
        program.run(backend=executor)


def test_two_thousand_branches_run_at_once_without_a_thread_each() -> None:
    gate = Gate()
    all_running = threading.Event()

    def script(prompt: str, call: GenerateCall) -> Answer:
        if len(backend.calls) == 2000:
            all_running.set()
        return answer(prompt, gates={0: gate})

    backend = ScriptedBackend(script)

    @function
    def program(s: ProgramState) -> int:
        s += "p"
        branches = s.fork(2000)
        for index, branch in enumerate(branches):
            branch += f"{index}" + gen("x")
        all_running.wait()
        num_threads = threading.active_count()
        gate.open()
        branches.join()
        return num_threads

    before = threading.active_count()
    with Executor(backend) as executor:
        run = program.run(backend=executor)
    assert run.return_value == before + 1
    assert run["x"] == [f"p{index}" for index in range(2000)]
