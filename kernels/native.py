"""Whether the native extension is there; the modules that use it (`pool`, `plan`) can be
imported only then."""

from __future__ import annotations

from functools import cache
from importlib import import_module


@cache
def why_unavailable() -> str | None:
    """What goes wrong when it is loaded: it is built without a compiler or for another machine."""
    try:
        import_module("._cpu", __package__)
    except ImportError as error:
        return str(error)
    return None
