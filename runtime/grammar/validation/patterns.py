"""ECMA-262 patterns, and RE2's own, in time linear in the text whatever the pattern."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import Any

from ..regular import NotPrintable, PatternError, search_language, search_pattern
from ..regular import matches as is_in
from .outcome import Uncheckable


def found_in(pattern: str, text: str) -> bool:
    """Whether the text has a match of an ECMA-262 pattern; `Uncheckable` if it is not regular."""
    try:
        return _condition(pattern).holds(text, _search)
    except NotPrintable:  # by derivatives then, in more time
        return is_in(_language(pattern), text)
    except PatternError as error:
        raise Uncheckable(f"the pattern {pattern!r:.100} {error}") from None


def matches(source: str, text: str) -> bool:
    """Whether the whole text matches a pattern in RE2's own syntax."""
    return _compiled(source).fullmatch(text) is not None


_condition = lru_cache(maxsize=1024)(search_pattern)
_language = lru_cache(maxsize=1024)(search_language)


def _search(source: str, text: str) -> object:
    return _compiled(source).search(text)


@lru_cache(maxsize=1024)
def _compiled(source: str) -> Any:
    re2 = import_module("re2")  # it has no types
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    try:
        return re2.compile(source, options)
    except re2.error as error:
        raise NotPrintable(f"RE2: {error}") from None
