"""What a program appends to its state: immutable expressions, not tied to any state.

Expressions join with `+`, also with plain strings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from espalier.runtime.messages import Constraint, LogprobOptions
from espalier.runtime.programs.ir import ChoicesMethod
from espalier.runtime.programs.values import Parse

from .sampling import SamplingArgs

Role = Literal["system", "user", "assistant"]


class Expr:
    """The base of all expressions."""

    def __add__(self, other: Expr | str) -> Expr:
        return Joined((self, as_expr(other)))

    def __radd__(self, other: str) -> Expr:
        return Joined((as_expr(other), self))


@dataclass(frozen=True, slots=True)
class Text(Expr):
    """Constant text; see `control`."""

    text: str
    is_control: bool = False


@dataclass(frozen=True, slots=True)
class Joined(Expr):
    """Expressions one after the other."""

    parts: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class RoleBeginning(Expr):
    role: Role


@dataclass(frozen=True, slots=True)
class RoleEnding(Expr):
    role: Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation(Expr):
    """A `gen`; what `sampling` leaves out comes from the run."""

    name: str | None
    sampling: SamplingArgs
    n: int
    constraint: Constraint | None
    logprobs: LogprobOptions | None
    parse: Parse | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection(Expr):
    """A `select`."""

    name: str | None
    choices: tuple[str, ...]
    method: ChoicesMethod


def as_expr(value: object) -> Expr:
    """`value`, which is an expression or a string, as an expression."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, str):
        return Text(value)
    raise TypeError(f"a program appends strings and expressions, not {value!r}")


def control(text: str) -> Expr:
    """Text in which the model's control tokens are recognised, unlike in plain strings.

    Never pass text from users through this.
    """
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"control() takes a string, not {text!r}")
    return Text(text, is_control=True)


def _message(role: Role, content: Expr | str) -> Expr:
    return Joined((RoleBeginning(role), as_expr(content), RoleEnding(role)))


def system(content: Expr | str) -> Expr:
    """A whole system message."""
    return _message("system", content)


def user(content: Expr | str) -> Expr:
    """A whole user message."""
    return _message("user", content)


def assistant(content: Expr | str) -> Expr:
    """A whole assistant message, usually with a `gen` in it."""
    return _message("assistant", content)


def system_begin() -> Expr:
    return RoleBeginning("system")


def system_end() -> Expr:
    return RoleEnding("system")


def user_begin() -> Expr:
    return RoleBeginning("user")


def user_end() -> Expr:
    return RoleEnding("user")


def assistant_begin() -> Expr:
    return RoleBeginning("assistant")


def assistant_end() -> Expr:
    return RoleEnding("assistant")
