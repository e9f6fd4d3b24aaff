"""Refuses constraints at the edge, before a request is accepted; knows no grammar engine.

What passes here is of bounded size and text that UTF-8 can carry; a schema is JSON. What it
says, and whether that can be enforced, is found where it is compiled.
"""

from __future__ import annotations

from typing import get_args

from ..errors import InvalidRequest
from ..messages import (
    Choice,
    Constraint,
    Ebnf,
    JsonSchema,
    Lark,
    Regex,
    StructuralTag,
    Unenforced,
)
from .schema.trouble import Malformed
from .schema.values import read_json

MAX_SCHEMA_BYTES = 128 << 10
MAX_EBNF_BYTES = 64 << 10
MAX_LARK_BYTES = 64 << 10
MAX_TAG_BYTES = 128 << 10
MAX_REGEX_BYTES = 8 << 10
MAX_CHOICES = 1024
MAX_CHOICES_BYTES = 64 << 10
MAX_SCHEMA_DEPTH = 100

_PARAMS = {
    JsonSchema: "json_schema",
    Regex: "regex",
    Ebnf: "ebnf",
    Lark: "lark",
    StructuralTag: "structural_tag",
    Choice: "choices",
}


def param_of(constraint: Constraint) -> str:
    """The name under which callers know the constraint: `InvalidRequest.param`."""
    return _PARAMS[type(constraint)]


def check_constraint(constraint: Constraint) -> None:
    """Raise `InvalidRequest`, naming the field and the trouble, if it can't be accepted."""
    match constraint:
        case JsonSchema(schema, unenforced=unenforced):
            if unenforced not in get_args(Unenforced):
                raise InvalidRequest(
                    f"unenforced must be 'refuse' or 'validate', not {unenforced!r:.80}",
                    param="unenforced",
                )
            _check_text(schema, MAX_SCHEMA_BYTES, "json_schema")
            _check_json(schema, "json_schema")
        case Regex(pattern):
            _check_text(pattern, MAX_REGEX_BYTES, "regex")
        case Ebnf(grammar):
            _check_text(grammar, MAX_EBNF_BYTES, "ebnf")
        case Lark(grammar):
            _check_text(grammar, MAX_LARK_BYTES, "lark")
        case StructuralTag(structure):
            _check_text(structure, MAX_TAG_BYTES, "structural_tag")
            _check_json(structure, "structural_tag")
        case Choice(choices):
            _check_choices(choices)


def _check_choices(choices: tuple[str, ...]) -> None:
    if not choices:
        raise InvalidRequest("choices must not be empty", param="choices")
    if len(choices) > MAX_CHOICES:
        raise InvalidRequest(
            f"at most {MAX_CHOICES} choices are allowed, not {len(choices)}", param="choices"
        )
    for text in choices:
        _check_text(text, MAX_CHOICES_BYTES, "choices")
    _check_text("".join(choices), MAX_CHOICES_BYTES, "choices")


def _check_text(text: str, max_bytes: int, param: str) -> None:
    try:
        num_bytes = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{param} is not valid Unicode: {error}", param=param) from None
    if num_bytes > max_bytes:
        raise InvalidRequest(f"{param} has {num_bytes} bytes, {max_bytes} are allowed", param=param)
    if "\0" in text:
        raise InvalidRequest(f"{param} contains a NUL byte", param=param)


def _check_json(text: str, param: str) -> None:
    depth = _nesting_depth(text)
    if depth > MAX_SCHEMA_DEPTH:
        raise InvalidRequest(
            f"{param}: nested {depth} levels deep, {MAX_SCHEMA_DEPTH} are allowed", param=param
        )
    try:
        read_json(text)
    except Malformed as trouble:
        raise InvalidRequest(f"{param}: {trouble}", param=param) from None


def _nesting_depth(text: str) -> int:
    """Depth of brackets outside strings: bounded before any parser recurses into them."""
    depth = deepest = 0
    in_string = escaped = False
    for char in text:
        if in_string:
            in_string = escaped or char != '"'
            escaped = not escaped and char == "\\"
        elif char == '"':
            in_string = True
        elif char in "{[":
            depth += 1
            deepest = max(deepest, depth)
        elif char in "}]":
            depth -= 1
    return deepest
