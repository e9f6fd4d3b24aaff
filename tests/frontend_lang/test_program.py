"""The decorator: signatures, options, binding and the default backend."""

from __future__ import annotations

import contextvars
import subprocess
import sys
from typing import Any

import pytest

from espalier.frontend_lang import ProgramState, function, gen, set_default_backend
from espalier.runtime.errors import InvalidRequest
from espalier.runtime.programs.executor import Executor
from tests.scripted_backend import ScriptedBackend

pytestmark = pytest.mark.timeout(60, method="thread")


@function
def program(s: ProgramState, a: str, *, b: str = "b") -> str:
    """Says something."""
    s += a + b + gen("x")
    return a


def test_a_program_looks_like_its_function() -> None:
    assert (getattr(program, "__name__", None), program.__doc__) == ("program", "Says something.")


def test_arguments_are_the_function_s() -> None:
    with Executor(ScriptedBackend()) as executor:
        assert program.run("1", backend=executor).text() == "1bok"
        assert program.run(a="1", b="2", backend=executor).text() == "12ok"
        wrong: list[dict[str, Any]] = [{}, {"a": "1", "c": "2"}, {"a": "1", "max_token": 3}]
        for arguments in wrong:
            with pytest.raises(TypeError, match="argument"):
                program.run(backend=executor, **arguments)
        with pytest.raises(TypeError, match="argument"):
            program.run("1", "2", backend=executor, stream=True)


def test_options_of_the_decorator_of_bind_and_of_run() -> None:
    backend = ScriptedBackend()
    with Executor(backend) as executor:

        @function(backend=executor, temperature=0.1, max_tokens=1)
        def decorated(s: ProgramState, a: str, b: str) -> None:
            s += a + b + gen("x")

        bound = decorated.bind(b="2", temperature=0.2, stop=["x"])
        assert bound.run("1", top_p=0.5).text() == "12ok"
        decorated.run("1", "2")
    first, second = (call.sampling for call in backend.calls)
    assert (first.temperature, first.max_new_tokens) == (0.2, 1)
    assert (first.stop, first.top_p) == (("x",), 0.5)
    assert (second.temperature, second.stop) == (0.1, ())


def test_bad_options_are_refused_at_the_call() -> None:
    with Executor(ScriptedBackend()) as executor:
        with pytest.raises(InvalidRequest, match="temperature"):
            program.run("1", backend=executor, temperature=-1)
        with pytest.raises(InvalidRequest, match="max_tokens"):
            program.bind(max_tokens=-1)


def test_the_default_backend_belongs_to_a_context() -> None:
    def with_default(executor: Executor) -> None:
        set_default_backend(executor)
        assert program.run("1").text() == "1bok"
        assert program.run("1", stream=True).text() == "1bok"

    with Executor(ScriptedBackend()) as executor:
        contextvars.copy_context().run(with_default, executor)
        with pytest.raises(InvalidRequest, match="no backend"):
            program.run("1")


def test_functions_that_can_t_be_programs() -> None:
    with pytest.raises(TypeError, match="first parameter"):
        function(lambda: None)  # type: ignore[arg-type, misc]
    with pytest.raises(TypeError, match="temperature"):

        @function
        def clash(s: ProgramState, temperature: float) -> None: ...

    with pytest.raises(TypeError, match="decorates a function"):
        function(3)  # type: ignore[call-overload]


def test_a_program_is_run_not_called() -> None:
    with pytest.raises(TypeError, match=r"call \.run"):
        program("1")  # type: ignore[arg-type, call-arg]


def test_importing_the_frontend_does_not_import_torch() -> None:
    code = "import sys, espalier.frontend_lang; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
