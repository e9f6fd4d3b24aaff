"""Refuses fields that are known, are not served, and would change the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import msgspec

from ..errors import InvalidRequest


def refuse_unserved(
    fields: msgspec.Struct, known: Mapping[str, Sequence[object]], prefix: str = ""
) -> None:
    """Raise `InvalidRequest`, naming the first of the `known` fields that asks for something.

    `known` has, by field, the values besides null (and lists of null alone) that ask for
    nothing else than what is served; `prefix` is the path of `fields` in the body.
    """
    for name, harmless in known.items():
        value: object = getattr(fields, name)
        if not _is_null(value) and value not in harmless:
            raise InvalidRequest(f"{prefix}{name} is not supported", param=prefix + name)


def _is_null(value: object) -> bool:
    if isinstance(value, list):
        return all(item is None for item in cast("list[object]", value))
    return value is None
