"""Types whose schemas are enforced: whatever the model writes is an object of the type."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NotRequired,
    Optional,
    TypedDict,
    Union,
    cast,
)
from uuid import UUID

import pytest
from pydantic import BaseModel, Field, TypeAdapter

from espalier.frontend_lang import ProgramState, function, gen
from espalier.frontend_lang.typed_dicts import for_pydantic
from espalier.runtime.errors import InvalidRequest
from espalier.runtime.programs.executor import ProgramHost
from tests.served_client import served_client

pytestmark = pytest.mark.timeout(120, method="thread")


class Person(BaseModel):
    name: Annotated[str, Field(max_length=10)]
    age: Annotated[int, Field(ge=0, le=150)]
    tags: list[Literal["a", "b"]] = []


class Chain(BaseModel):
    value: int
    next: Chain | None = None


@dataclass
class Point:
    x: int
    y: float = 0.0


class Entry(TypedDict):
    key: int
    note: NotRequired[bool]


class Pair(NamedTuple):
    left: int
    right: bool


class Colour(enum.Enum):
    RED = "red"
    BLUE = 3


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    good: bool


class Owner(BaseModel):
    pet: Cat | Dog = Field(discriminator="kind")
    born: datetime


TYPES: list[tuple[Any, type | tuple[type, ...]]] = [
    (Person, Person),
    (Chain, Chain),
    (Point, Point),
    (Entry, dict),
    (Pair, Pair),
    (Owner, Owner),
    (Literal["a", 1, None], (str, int, type(None))),
    (Colour, Colour),
    (Optional[int], (int, type(None))),  # noqa: UP045
    (Union[int, bool], (int, bool)),  # noqa: UP007
    (list[int], list),
    (tuple[int, Colour], tuple),
    (dict[Colour, int], dict),
    (dict[str, Point], dict),
    (datetime, datetime),
    (date, date),
    (time, time),
    (Decimal, Decimal),
    (Annotated[Decimal, Field(gt=Decimal("1.5"), le=20)], Decimal),
    (UUID, UUID),
    (float, float),
    (bool, bool),
    (str, str),
    (TypeAdapter(list[Point]), list),
]


@pytest.fixture(scope="module")
def host() -> Iterator[ProgramHost]:
    with served_client() as served:
        yield served.executor


@function
def typed(s: ProgramState, type_: Any, turn: int) -> None:
    s += "A:" + gen("x", json_schema=type_, max_tokens=150, temperature=1.0, seed=turn)


@pytest.mark.parametrize(
    ("type_", "kinds"), TYPES, ids=lambda value: getattr(value, "__name__", "")
)
def test_the_value_is_of_the_type(host: ProgramHost, type_: Any, kinds: Any) -> None:
    for turn in range(2):
        run = typed.run(type_, turn, backend=host)
        assert isinstance(run["x"], kinds), run["x"]
        adapter = cast("TypeAdapter[Any]", type_)
        if not isinstance(type_, TypeAdapter):
            adapter = TypeAdapter(for_pydantic(type_))
        assert adapter.validate_json(adapter.dump_json(run["x"])) == run["x"]


@pytest.mark.parametrize("type_", [set[int], frozenset[str]])
def test_what_can_not_be_enforced_says_so(host: ProgramHost, type_: Any) -> None:
    with pytest.raises(InvalidRequest, match="uniqueItems"):
        typed.run(type_, 0, backend=host)["x"]
