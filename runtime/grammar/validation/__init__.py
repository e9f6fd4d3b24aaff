"""Exact validation of finished text against a JSON Schema; knows no grammar and no engine.

Draft 2020-12, and what older drafts said differently where a schema says it in their way: a
list under `items` with `additionalItems`, `dependencies`, a boolean `exclusiveMinimum` or
`exclusiveMaximum`, `$recursiveRef`. Where `$schema` names draft 7 or older, `$ref` hides its
siblings; where it names draft 4 or 3, `id` is what `$id` became. Keywords of newer drafts hold
under any `$schema`.

References stay within the schema and the published meta-schemas: nothing is ever fetched.
Numbers are exact, and the formats in `formats.py` are asserted; others are annotations.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager

from .keywords import KEYWORDS
from .outcome import Uncheckable, Verdict, Violation
from .reading import Json, read_json
from .references import Document
from .validator import Validator

__all__ = ["Verdict", "validate_json"]

_MAX_FRAMES = 30_000
"""About 15 for each level of nesting; Python's own calls take no room on the C stack."""


def validate_json(schema_text: str, text: str) -> Verdict:
    """Whether `text` is JSON, no object of it has a key twice, and the schema accepts it.

    Never raises: `valid` is None, and `trouble` says why, where it can't be decided. Time is the
    caller's to bound.
    """
    try:
        schema = read_json(schema_text)
    except (Violation, Uncheckable) as trouble:
        return Verdict(None, f"the schema can't be read: {trouble}")
    try:
        _check(schema, read_json(text))
    except Violation as violation:
        return Verdict(False, str(violation))
    except Uncheckable as trouble:
        return Verdict(None, str(trouble))
    except RecursionError:
        return Verdict(None, "the schema or the text is nested too deep")
    return Verdict(True, "")


def _check(schema: Json, value: Json) -> None:
    """What could be read, within the interpreter's usual limit, is not too deep to be checked."""
    with _room_to_recurse():
        Validator(Document(schema), KEYWORDS).check(value)


@contextmanager
def _room_to_recurse() -> Generator[None, None, None]:
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(max(usual, _MAX_FRAMES))
    try:
        yield
    finally:
        sys.setrecursionlimit(usual)
