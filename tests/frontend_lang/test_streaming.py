"""Text while it is generated: of the whole state and of one variable."""

from __future__ import annotations

import pytest

from espalier.frontend_lang import ProgramState, function, gen, select
from espalier.runtime.programs.executor import Executor
from tests.scripted_backend import Answer, Gate, ScriptedBackend, answer

pytestmark = pytest.mark.timeout(20, method="thread")

CHAT = "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\none two three<|im_end|>\n"


def test_a_streamed_run_yields_pieces_as_they_come() -> None:
    gates = [Gate(), Gate()]

    def script(prompt: str, call: object) -> Answer:
        return answer("one ", "two ", "three", gates={1: gates[0], 2: gates[1]})

    @function
    def program(s: ProgramState) -> str:
        s.user("Q")
        s.assistant(gen("x"))
        return "done"

    with Executor(ScriptedBackend(script)) as executor:
        run = program.run(backend=executor, stream=True)
        pieces = run.text_iter("x")
        everything = run.text_iter()
        assert next(pieces) == "one "
        gates[0].open()
        assert next(pieces) == "two "
        gates[1].open()
        assert list(pieces) == ["three"]
        assert list(run.text_iter("x")) == ["one ", "two ", "three"]
        assert "".join(everything) == run.text() == CHAT
        assert run.return_value == "done"
        with pytest.raises(KeyError, match="no variable 'y'"):
            list(run.text_iter("y"))


def test_iterators_inside_a_program_end_with_what_is_there() -> None:
    @function
    def program(s: ProgramState) -> list[str]:
        s += "a" + gen("x")
        s += "b" + select("y", ["c"])
        assert "".join(s.text_iter()) == "aone twobc"
        assert list(s.text_iter("y")) == ["c"]
        return list(s.text_iter("x"))

    with Executor(ScriptedBackend(lambda p, c: answer("one ", "two"))) as executor:
        assert program.run(backend=executor).return_value == ["one ", "two"]


def test_a_branch_streams_its_own_text_after_its_parent_s() -> None:
    @function
    def program(s: ProgramState) -> None:
        s += "a" + gen("x")
        branches = s.fork(2)
        branches[1] += "b" + gen("y")
        assert "".join(branches[1].text_iter()) == "aokbok"
        assert "".join(branches[0].text_iter()) == "aok"

    with Executor(ScriptedBackend()) as executor:
        program.run(backend=executor)


def test_a_variable_is_streamed_before_the_function_has_reached_it() -> None:
    before = Gate()

    def script(prompt: str, call: object) -> Answer:
        return answer("ok", gates={0: before} if prompt == "1" else {})

    @function
    def program(s: ProgramState) -> None:
        s += "1" + gen("x")
        s += s["x"] + gen("y")

    with Executor(ScriptedBackend(script)) as executor:
        run = program.run(backend=executor, stream=True)
        pieces = run.text_iter("y")
        before.open()
        assert list(pieces) == ["ok"]
