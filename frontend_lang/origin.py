"""Where in the user's program a node was made; knows only the call stack."""

from __future__ import annotations

import sys

_OURS = __name__.rpartition(".")[0]


def origin() -> str:
    """`file:line` of the innermost frame outside this package."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _is_ours(module: str) -> bool:
    return module == _OURS or module.startswith(_OURS + ".")
