"""Typed reading of one JSON object that somebody else wrote; knows no model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn, cast

from ..errors import ModelError


class JsonFields:
    """The fields of a JSON object; a field that is null counts as missing.

    Getters raise `ModelError`, naming `source` and the field, if the value is missing and no
    default is given, or if it is of another type.
    """

    def __init__(self, document: Mapping[str, object], source: str) -> None:
        self._document = document
        self.source = source

    def __contains__(self, name: str) -> bool:
        return self._document.get(name) is not None

    def text(self, name: str, default: str | None = None) -> str:
        value = self._value(name, default)
        return value if isinstance(value, str) else self.refuse(name, "must be a string")

    def integer(self, name: str, default: int | None = None) -> int:
        value = self._value(name, default)
        return value if type(value) is int else self.refuse(name, "must be an integer")

    def number(self, name: str, default: float | None = None) -> float:
        """A float, or an integer as a float."""
        value = self._value(name, default)
        if isinstance(value, float) or type(value) is int:
            return float(value)
        self.refuse(name, "must be a number")

    def flag(self, name: str, default: bool | None = None) -> bool:
        value = self._value(name, default)
        return value if isinstance(value, bool) else self.refuse(name, "must be true or false")

    def nested(self, name: str) -> JsonFields:
        """A nested object; an empty one if the field is missing."""
        value = self._document.get(name)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            self.refuse(name, "must be an object")
        return JsonFields(cast("dict[str, object]", value), f"{self.source}: {name}")

    def refuse(self, name: str, problem: str) -> NoReturn:
        value = f"{self._document.get(name)!r:.80}"
        raise ModelError(f"{self.source}: {name!r} is {value}; it {problem}")

    def _value(self, name: str, default: object) -> object:
        value = self._document.get(name)
        value = default if value is None else value
        if value is None:
            raise ModelError(f"{self.source}: {name!r} is missing")
        return value
