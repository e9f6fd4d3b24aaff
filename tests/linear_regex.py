"""google-re2 with types: it has none of its own."""

from __future__ import annotations

import importlib
from typing import Any

_re2: Any = importlib.import_module("re2")


def re2_search(source: str, text: str) -> object:
    """The first match, or None."""
    return _re2.search(source, text)


def re2_matches(source: str, text: str) -> bool:
    """Whether the whole text matches."""
    return _re2.fullmatch(source, text) is not None
