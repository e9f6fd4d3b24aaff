"""All keywords that are checked, by name."""

from __future__ import annotations

from collections.abc import Mapping

from .applicators import APPLICATORS
from .assertions import ASSERTIONS, Assertion
from .outcome import Violation
from .reading import Json
from .validator import Keyword, Spot, Validator
from .values import short


def _asserting(name: str, holds: Assertion) -> Keyword:
    def apply(_: Validator, argument: Json, value: Json, spot: Spot) -> None:
        if not holds(argument, value, spot.schema):
            raise Violation(f"{name} {short(argument)}")

    return apply


KEYWORDS: Mapping[str, Keyword] = APPLICATORS | {
    name: _asserting(name, holds) for name, holds in ASSERTIONS.items()
}
