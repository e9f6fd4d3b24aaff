"""What a field of a configuration class tells of itself, and configurations by flat names.

Knows what a field's flag is called, but parses no command line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar, cast, get_args, get_type_hints

from .errors import InvalidRequest

T = TypeVar("T")
C = TypeVar("C")

_KEY = "espalier.option"


@dataclass(frozen=True, slots=True)
class OptionText:
    """What `option` was told."""

    help: str
    value: str | None
    unset: str | None
    flag: str | None


@dataclass(frozen=True, slots=True)
class Option:
    """One field of `owner`, which is a configuration class or nested in one.

    kind: bool, int, float or str. choices: its values where they are few.
    """

    owner: type
    name: str
    kind: type
    choices: tuple[str, ...]
    default: object
    text: OptionText

    @property
    def flag(self) -> str:
        """The name on a command line. A flag of a truth value turns its default around."""
        if self.text.flag is not None:
            return self.text.flag
        words = self.name.removesuffix("_s").replace("_", "-")
        return f"--disable-{words}" if self.default is True else f"--{words}"


def option(
    default: T,
    help: str,
    *,
    value: str | None = None,
    unset: str | None = None,
    flag: str | None = None,
) -> T:
    """A field of a configuration class.

    `value` names what it holds, the unit where there is one; `unset` says what None stands
    for; `flag` is given where it is not the field's own name.
    """
    return field(default=default, metadata={_KEY: OptionText(help, value, unset, flag)})


def options_of(config_class: type) -> Iterator[Option]:
    """The options of a configuration class, then those of the classes nested in it."""
    hints = get_type_hints(config_class)
    for f in fields(config_class):
        if _KEY in f.metadata:
            kind, choices = _kind(hints[f.name])
            yield Option(config_class, f.name, kind, choices, f.default, f.metadata[_KEY])
    for inner in _nested(config_class).values():
        yield from options_of(inner)


def configured(config_class: type[C], given: Mapping[str, object]) -> C:
    """A `config_class`, not validated, with `given` by name: its fields, and those of the
    configurations nested in it. Raises `InvalidRequest` naming an option that none has."""
    known = _names(config_class)
    for name in given:
        if name not in known:
            raise InvalidRequest(f"unknown option {name!r}", param=name)
    return cast(C, _with(config_class, config_class(), given))


def _nested(config_class: type) -> dict[str, type]:
    """The fields that are configurations themselves."""
    hints = get_type_hints(config_class)
    classes = {name: hint for name, hint in hints.items() if isinstance(hint, type)}
    return {name: hint for name, hint in classes.items() if is_dataclass(hint)}


def _names(config_class: type) -> set[str]:
    own = {f.name for f in fields(config_class)}
    return own.union(*map(_names, _nested(config_class).values()))


def _with(config_class: type, config: Any, given: Mapping[str, object]) -> Any:
    own = {f.name: given[f.name] for f in fields(config_class) if f.name in given}
    config = replace(config, **own)
    for name, inner in _nested(config_class).items():
        value = getattr(config, name)
        if isinstance(value, inner):  # what is no configuration is refused by `validate`
            config = replace(config, **{name: _with(inner, value, given)})
    return config


def _kind(hint: object) -> tuple[type, tuple[str, ...]]:
    """`bool`, `int`, `float`, `str` or a literal of strings; `| None` goes without saying."""
    if isinstance(hint, type):
        return hint, ()
    members = [member for member in get_args(hint) if member is not type(None)]
    if len(members) == 1 and isinstance(members[0], type):
        return members[0], ()
    assert members and all(isinstance(member, str) for member in members), hint
    return str, tuple(members)
