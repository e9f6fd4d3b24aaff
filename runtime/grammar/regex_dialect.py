"""The regular expressions that Espalier takes, rewritten for the engine.

The dialect: the whole output must match. `^` and `$` may stand at the ends of the pattern or
of its top-level alternatives, where they change nothing. `.` is any character but a newline.
`\\d` and `\\w` are ASCII, `\\s` is as in ECMAScript. No look-around, back-references, word
boundaries, flags or `\\p`. What the engine would read otherwise without an error is refused
here; what it refuses itself is left to its own words.
"""

from __future__ import annotations

import re
from typing import NoReturn

from ..errors import InvalidRequest

_TOKEN = re.compile(r"\\x[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\.|\[\^?|.|\\", re.DOTALL)
# Letters and digits that mean something after a backslash, in a class and outside of it.
_ESCAPES = frozenset("dDwWsStnrfva0")
# Outside a class the engine refuses these with words of its own.
_REFUSED_BY_ENGINE = frozenset("bBpPk123456789")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_ESCAPED_CARETS = (r"\^", r"\x5e", r"\x5E", r"\u005e", r"\u005E")


def translate_regex(pattern: str) -> str:
    """`pattern` as xgrammar must be given it; `InvalidRequest` if it is not in the dialect."""
    tokens = [match[0] for match in _TOKEN.finditer(pattern)]
    parts: list[str] = []
    opened: int | None = None  # index of the bracket of the class being read
    depth = 0  # of parentheses
    position = 0
    for index, token in enumerate(tokens):
        if opened is not None:
            if index == opened + 1:
                _check_first_of_class(tokens[opened], token, position)
            _check_escape(token, position, _ESCAPES | {"b"})
            opened = None if token == "]" else opened
            parts.append(token)
        elif token in ("^", "$"):
            beside = tokens[:index][-1:] if token == "^" else tokens[index + 1 :][:1]
            if depth or beside not in ([], ["|"]):
                _refuse(f"{token!r} may only stand at an end of the pattern", position)
        else:
            _check_escape(token, position, _ESCAPES | _REFUSED_BY_ENGINE)
            opened = index if token in ("[", "[^") else None
            depth += {"(": 1, ")": -1}.get(token, 0)
            parts.append(r"[^\n]" if token == "." else token)
        position += len(token)
    return "".join(parts)


def _check_first_of_class(bracket: str, token: str, position: int) -> None:
    if token == "]":
        _refuse("an empty class; a literal bracket is written '\\]'", position)
    if bracket == "[" and token in _ESCAPED_CARETS:
        _refuse("an escaped '^' can't be the first of a class: put it later", position)


def _check_escape(token: str, position: int, known: frozenset[str]) -> None:
    if token == "\\":
        _refuse("the pattern ends with a backslash", position)
    if _SURROGATE.match(token):
        _refuse(f"{token} is half a character: no text has it", position)
    if len(token) == 2 and token[0] == "\\" and token[1].isalnum() and token[1] not in known:
        _refuse(f"the escape {token} is not supported", position)


def _refuse(trouble: str, position: int) -> NoReturn:
    raise InvalidRequest(f"regex: at position {position + 1}: {trouble}", param="regex")
