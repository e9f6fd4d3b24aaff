"""A weaker schema where one can't be enforced: what troubles is left out, and named.

What the grammar then accepts is to be validated; knows no validator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import thread_time

from .document import MAPS, Schema, is_list, is_object
from .grammar import NORMALISE_S, SchemaGrammar, grammar_of
from .trouble import ROOT, Malformed, Pointer, SchemaTrouble, Unsatisfiable
from .values import read_json

MAX_LEFT_OUT = 16

# Where what stands below gets weaker, what stands above gets stricter.
_TURNING = frozenset({"not", "if", "oneOf", "contains"})
_REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
# Keywords that would forbid what the left out one has allowed.
_ALONG = {"patternProperties": ("additionalProperties", "unevaluatedProperties")}


def weakened(text: str, *, open_objects: bool = False) -> tuple[SchemaGrammar, tuple[str, ...]]:
    """The grammar of the schema in `text`, or of what of it can be enforced; and what is not.

    Raises `SchemaTrouble` where the text is no schema, or nothing is valid against it.
    """
    schema = read_json(text)
    left_out: list[str] = []
    deadline = thread_time() + NORMALISE_S
    while len(left_out) < MAX_LEFT_OUT and thread_time() < deadline:
        try:
            return grammar_of(schema, open_objects=open_objects), tuple(left_out)
        except SchemaTrouble as trouble:
            if isinstance(trouble, Malformed | Unsatisfiable) and not _is_ours(trouble, left_out):
                raise
            schema, notes = _without(schema, trouble)
            left_out += notes
    return grammar_of(True), ("#: nothing of the schema is enforced",)


def _is_ours(trouble: SchemaTrouble, left_out: Sequence[str]) -> bool:
    """Whether it may have come by what was left out: what a reference named, what was valid."""
    is_reference = trouble.keyword in _REFERENCES
    return bool(left_out) and (is_reference or isinstance(trouble, Unsatisfiable))


def _without(schema: object, trouble: SchemaTrouble) -> tuple[object, list[str]]:
    """The schema without what troubles, and what is not enforced any more."""
    steps, keyword = _culprit(schema, trouble)
    pointer = ROOT
    for step in steps:
        pointer = pointer / step
    if keyword is None:
        return _replaced(schema, steps, lambda _: True), [f"{pointer}: nothing of it is enforced"]
    gone = (keyword, *_ALONG.get(keyword, ()))
    return _replaced(schema, steps, _lacking(gone)), [f"{pointer}: {keyword} is not enforced"]


def _culprit(schema: object, trouble: SchemaTrouble) -> tuple[Sequence[str], str | None]:
    """Where something is to be left out, and which keyword; None: all that stands there."""
    steps = _steps(trouble.pointer)
    at, num_seen = schema, 0
    while num_seen < len(steps):
        keyword = steps[num_seen]
        if keyword in _TURNING:
            return steps[:num_seen], keyword
        below = _child(at, keyword)
        num_below = num_seen + 1
        if num_below < len(steps) and (is_list(below) or keyword in MAPS):
            below = _child(below, steps[num_below])
            num_below += 1
        if below is None:  # it stands in no place of its own: it was made of what stands here
            return steps[:num_seen], None
        at, num_seen = below, num_below
    is_there = is_object(at) and trouble.keyword in at
    return steps, trouble.keyword if is_there else None


def _child(value: object, step: str) -> object:
    if is_list(value):
        return value[int(step)] if step.isdecimal() and int(step) < len(value) else None
    return value.get(step) if is_object(value) else None


def _steps(pointer: Pointer) -> list[str]:
    steps: list[str] = []
    while pointer.parent is not None:
        steps.append(pointer.token)
        pointer = pointer.parent
    return steps[::-1]


def _replaced(value: object, steps: Sequence[str], new: Callable[[object], object]) -> object:
    """`value` with what stands at `steps` made anew."""
    if not steps:
        return new(value)
    first, rest = steps[0], steps[1:]
    if is_list(value):
        return [
            _replaced(item, rest, new) if str(index) == first else item
            for index, item in enumerate(value)
        ]
    assert is_object(value), steps
    return {**value, first: _replaced(value[first], rest, new)}


def _lacking(keywords: Iterable[str]) -> Callable[[object], Schema]:
    def lacking(schema: object) -> Schema:
        assert is_object(schema), schema
        return {name: value for name, value in schema.items() if name not in keywords}

    return lacking
