"""sglang's own RadixCache as a contender, from an unpacked wheel and nothing else of it.

    pip download --no-deps sglang==0.5.23 && unzip -q sglang-*.whl -d DIR

The package imports GPU kernels, servers and metrics that a tree has no use for. The cache's own
modules are loaded as they are; every other module of sglang is an empty one, whose names are
classes without anything in them, so that a call into one fails.
"""

from __future__ import annotations

import importlib
import sys
from array import array
from collections.abc import MutableSequence, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from espalier.radix import IntArray

_PACKAGE = "sglang.srt.mem_cache"
_REAL = {
    f"{_PACKAGE}.{name}"
    for name in (
        "base_prefix_cache",
        "cache_init_params",
        "events",
        "evict_policy",
        "radix_cache",
        "utils",
    )
}


class _Empty(ModuleType):
    """A module that has every name that is imported from it."""

    __path__: MutableSequence[str] = []

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _Finder(MetaPathFinder, Loader):
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in _REAL:
            file = self._directory / f"{fullname.replace('.', '/')}.py"
            return spec_from_file_location(fullname, file)
        if fullname.partition(".")[0] == "sglang":
            return ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """An empty module has nothing to execute."""


def load_peer(directory: Path) -> Any:
    """The module of sglang's RadixCache, from the folder into which the wheel was unpacked."""
    name = f"{_PACKAGE}.radix_cache"
    finder = _Finder(directory)
    sys.meta_path.insert(0, finder)
    try:
        return importlib.import_module(name)
    finally:
        sys.meta_path.remove(finder)


class _Allocator:
    """What the cache frees goes on a list."""

    device = "cpu"

    def __init__(self) -> None:
        self.freed: list[torch.Tensor] = []

    def free_segment(self, slots: torch.Tensor, start_pos: int) -> None:
        self.freed.append(slots)


class Sglang:
    """sglang's RadixCache with pages of one token."""

    name = "sglang"

    def __init__(self, module: Any, num_slots: int) -> None:
        self._module = module
        self._cache = module.RadixCache.create_simulated(mock_allocator=_Allocator())
        self._free = torch.arange(num_slots)

    def key_of(self, ids: IntArray) -> Any:
        return array("q", ids.tolist())

    def live(self, prompt: Any, whole: Any) -> int:
        cache = self._cache
        match = self._match(prompt)
        known, node = int(match.device_prefix_len), match.last_device_node
        cache.inc_lock_ref(node)
        row = torch.empty(len(whole), dtype=torch.int64)
        new = len(whole) - known
        row[known:], self._free = self._free[:new], self._free[new:]
        end = self._insert(prompt, row[: len(prompt)])
        cache.inc_lock_ref(end)
        cache.dec_lock_ref(node)
        self._insert(whole, row)
        cache.dec_lock_ref(end)
        return known

    def match(self, key: Any) -> int:
        return int(self._match(key).device_prefix_len)

    def lock_and_unlock(self, key: Any, times: int) -> None:
        node = self._match(key).last_device_node
        for _ in range(times):
            self._cache.inc_lock_ref(node)
            self._cache.dec_lock_ref(node)

    def evict(self, num_tokens: int) -> None:
        self._cache.evict(self._module.EvictParams(num_tokens=num_tokens))

    def _match(self, ids: Any) -> Any:
        key = self._module.RadixKey(ids)
        return self._cache.match_prefix(self._module.MatchPrefixParams(key=key))

    def _insert(self, ids: Any, slots: torch.Tensor) -> Any:
        params = self._module.InsertParams(key=self._module.RadixKey(ids), value=slots)
        return self._cache.insert(params).last_device_node
