"""The radix part as it is where nothing native has been built, beside the one that is in use."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

PART = "espalier.radix"
_PLAIN = "plain_radix"
_INIT = Path(__file__).resolve().parents[2] / "radix" / "__init__.py"


def plain(module: str) -> ModuleType:
    """The second copy of a module of the part, such as "cache"; it shares no type with the first.

    Within the part all imports are relative, so a copy under another name is complete.
    """
    if _PLAIN not in sys.modules:
        spec = spec_from_file_location(
            _PLAIN, _INIT, submodule_search_locations=[str(_INIT.parent)]
        )
        assert spec is not None and spec.loader is not None
        part = module_from_spec(spec)
        sys.modules[_PLAIN] = part
        sys.modules[f"{_PLAIN}._core"] = None  # type: ignore[assignment]  # can't be imported
        spec.loader.exec_module(part)
    return import_module(f"{_PLAIN}.{module}")


__all__ = ["PART", "PlainCache", "PlainHandle", "PlainNode", "plain"]

if TYPE_CHECKING:
    from espalier.radix.cache import RadixCache as PlainCache
    from espalier.radix.tree import Handle as PlainHandle
    from espalier.radix.tree import Node as PlainNode
else:
    PlainCache = plain("cache").RadixCache
    PlainHandle = plain("tree").Handle
    PlainNode = plain("tree").Node
