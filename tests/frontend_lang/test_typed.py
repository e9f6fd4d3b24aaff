"""Outputs with a type: each kind of type, and what is said where the text does not fit."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, Required, TypedDict

import pytest
from pydantic import BaseModel, Field, TypeAdapter

from espalier.frontend_lang import ProgramState, function, gen, gen_int
from espalier.frontend_lang.typed import dtype_reading, json_reading
from espalier.runtime.messages import FinishReason, JsonSchema, Regex
from espalier.runtime.programs.errors import OutputError
from espalier.runtime.programs.executor import Executor
from tests.scripted_backend import Answer, ScriptedBackend

pytestmark = pytest.mark.timeout(20, method="thread")


class Model(BaseModel):
    name: str
    age: Annotated[int, Field(ge=0)]


@dataclass
class Point:
    x: int
    y: int = 0


class Entry(TypedDict):
    """An entry."""

    key: str
    note: NotRequired[str]


class Shelf(Entry, total=False):
    entries: list[Entry]
    first: Entry | None
    size: Required[int]


def read(text: str, **arguments: Any) -> Any:
    backend = ScriptedBackend(lambda prompt, call: text)

    @function
    def program(s: ProgramState) -> None:
        s += gen("x", **arguments)

    with Executor(backend) as executor:
        run = program.run(backend=executor)
    assert run["x"] is run["x"]
    return run["x"]


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (Model, '{"name":"Ada","age":36}', Model(name="Ada", age=36)),
        (Point, '{"x":1}', Point(1, 0)),
        (Entry, '{"key":"k"}', {"key": "k"}),
        (Literal["a", "b"], '"b"', "b"),
        (list[int], "[1,2]", [1, 2]),
        (int | None, "null", None),
        (bool, "true", True),
        (TypeAdapter(list[Model]), '[{"name":"A","age":1}]', [Model(name="A", age=1)]),
        (Annotated[int, {"unhashable": True}], "4", 4),
    ],
)
def test_json_types(type_: Any, text: str, value: object) -> None:
    assert read(text, json_schema=type_) == value


@pytest.mark.parametrize("schema", [{"type": "object"}, '{"type": "object"}'])
def test_a_schema_without_a_type_leaves_the_text(schema: Any) -> None:
    assert read('{"a":1}', json_schema=schema) == '{"a":1}'


@pytest.mark.parametrize(
    ("dtype", "text", "value"),
    [
        (int, "-12", -12),
        (float, "2.50", 2.5),
        (float, "3", 3.0),
        (bool, "True", True),
        (bool, "False", False),
        (str, "12 'x'", "12 'x'"),
    ],
)
def test_dtypes(dtype: type, text: str, value: object) -> None:
    result = read(text, dtype=dtype)
    assert result == value and type(result) is dtype


@pytest.mark.parametrize("dtype", [int, float, bool])
def test_dtype_regexes_accept_exactly_what_can_be_read_and_are_bounded(dtype: type) -> None:
    constraint, parse = dtype_reading(dtype)
    assert isinstance(constraint, Regex) and parse is not None
    for text in ["0", "-7", "123456789012345678", "1.5", "True", "False"]:
        if re.fullmatch(constraint.pattern, text):
            assert type(parse(text)) is dtype
    for text in ["", "01", "+1", "1" * 19, "1.", "1.0000000001", "true", "TrueFalse"]:
        assert not re.fullmatch(constraint.pattern, text)
    assert "+" not in constraint.pattern and "*" not in constraint.pattern


def test_the_schema_of_a_type_is_its_json_schema() -> None:
    constraint, _ = json_reading(Model)
    assert isinstance(constraint, JsonSchema)
    assert json.loads(constraint.schema) == Model.model_json_schema()


def test_typed_dicts_keep_their_required_keys_also_inside_other_types() -> None:
    constraint, parse = json_reading(Shelf)
    assert isinstance(constraint, JsonSchema) and parse is not None
    schema = json.loads(constraint.schema)
    assert schema["required"] == ["key", "size"]
    assert schema["$defs"]["Entry"]["required"] == ["key"]
    assert schema["$defs"]["Entry"]["description"] == "An entry."
    shelf = {"key": "k", "size": 1, "first": None, "entries": [{"key": "a", "note": "n"}]}
    assert parse(json.dumps(shelf)) == shelf
    with pytest.raises(ValueError, match="size"):
        parse('{"key":"k"}')


def test_several_typed_outputs() -> None:
    assert read("7", dtype=int, n=2, temperature=1) == [7, 7]


@pytest.mark.parametrize("arguments", [{"json_schema": Model}, {"dtype": int}])
def test_an_output_cut_at_max_tokens_is_a_clear_error_with_the_text(
    arguments: dict[str, Any],
) -> None:
    cut = Answer(('{"name":"A',), finish=FinishReason(kind="length"))
    backend = ScriptedBackend(lambda prompt, call: cut)

    @function
    def program(s: ProgramState) -> str:
        s += gen("x", **arguments) + gen("raw", json_schema={})
        return str(s["raw"])

    with Executor(backend) as executor:
        run = program.run(backend=executor)
    assert run.return_value == '{"name":"A'
    with pytest.raises(OutputError, match="'x' .* cut at max_tokens") as raised:
        run["x"]
    assert raised.value.text == '{"name":"A'
    assert run.text() == '{"name":"A{"name":"A'


def test_an_output_that_its_validator_refuses_says_why() -> None:
    backend = ScriptedBackend(lambda prompt, call: '{"name":"A","age":-1}')

    @function
    def program(s: ProgramState) -> None:
        s += gen("x", json_schema=Model)
        s["x"]

    with Executor(backend) as executor, pytest.raises(OutputError, match="ValidationError") as e:
        program.run(backend=executor)
    assert e.value.__cause__ is not None


def test_joined_variables_keep_their_type() -> None:
    backend = ScriptedBackend(lambda prompt, call: prompt[-1])

    @function
    def program(s: ProgramState) -> int:
        branches = s.fork(3)
        for index, branch in enumerate(branches):
            branch += f"{index}" + gen_int("x")
        branches.join()
        return sum(s["x"])

    with Executor(backend) as executor:
        assert program.run(backend=executor).return_value == 3
