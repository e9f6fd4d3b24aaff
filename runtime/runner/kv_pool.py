"""The device's memory of requests: the KV pool and the tables that index it.

Sizes are chosen from a flag or from the memory that is free, within the control group's
limit. Pages are touched when they are first written, so that a pool costs what has been used of
it; while the device has nothing to do, those of the slots that come next are touched as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from espalier.kernels.arena import HUGE_PAGE_NBYTES, huge_empty

from ..config import KVStorage
from ..models.config import ModelConfig
from ..scheduler.step import TableWrite

KV_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}
AHEAD_NBYTES = 256 << 20
_PAGE_NBYTES = 4096
_CGROUP_ROOT = Path("/sys/fs/cgroup")


class KVPool:
    """Keys and values of every slot in every layer: k_LSKd and v_LSKd.

    As int8 they stand for `stored * scale`, with a scale for each slot and head.
    """

    def __init__(self, config: ModelConfig, num_slots: int, storage: KVStorage) -> None:
        shape = (config.num_layers, num_slots, config.num_kv_heads, config.head_dim)
        self.k_LSKd = huge_empty(shape, KV_DTYPES[storage])
        self.v_LSKd = huge_empty(shape, KV_DTYPES[storage])
        self.k_scales_LSK: Tensor | None = None
        self.v_scales_LSK: Tensor | None = None
        if storage == "int8":
            self.k_scales_LSK = huge_empty(shape[:3], torch.float32)
            self.v_scales_LSK = huge_empty(shape[:3], torch.float32)
        self._ahead = _Ahead(self._layers(), AHEAD_NBYTES // self.bytes_per_slot(config, storage))

    def touch_ahead(self, num_used: int) -> bool:
        """Have the system find memory for some of the slots that follow the first `num_used`, a
        huge page at a time; returns whether there is more to do.

        A step whose keys and values need new pages waits for the system to clear them: 120 MB at
        once with SmolLM2-135M, a matter of 10 ms, and of 250 where a virtual machine has to ask
        its host. Changes no value; nobody else may write to the pool meanwhile.
        """
        return self._ahead.touch(num_used)

    def _layers(self) -> list[Tensor]:
        """Every array of every layer, by slot."""
        arrays = (self.k_LSKd, self.v_LSKd, self.k_scales_LSK, self.v_scales_LSK)
        return [layer for array in arrays if array is not None for layer in array]

    @staticmethod
    def bytes_per_slot(config: ModelConfig, storage: KVStorage) -> int:
        scale_nbytes = 4 if storage == "int8" else 0
        head_nbytes = config.head_dim * KV_DTYPES[storage].itemsize + scale_nbytes
        return 2 * config.num_layers * config.num_kv_heads * head_nbytes


class _Ahead:
    """Touches the pages of arrays [slot, ...] from a slot on, to at most `most` slots further."""

    def __init__(self, arrays: list[Tensor], most: int) -> None:
        self._arrays = arrays
        self._num_slots = len(arrays[0])
        self._most = most
        widest = max(array[0].nbytes for array in arrays)
        self._stretch = max(1, HUGE_PAGE_NBYTES // widest)  # slots at a time
        self._begin = self._index = 0  # slots before `_begin` are done, and in arrays before this

    def touch(self, num_used: int) -> bool:
        if self._begin < num_used:
            self._begin, self._index = num_used, 0
        if self._begin >= min(self._num_slots, num_used + self._most):
            return False
        stretch = self._arrays[self._index][self._begin : self._begin + self._stretch]
        stretch.reshape(-1).view(torch.uint8)[::_PAGE_NBYTES] += 0
        self._index += 1
        if self._index == len(self._arrays):
            self._begin, self._index = self._begin + self._stretch, 0
        return True


class DeviceTables:
    """Token ids and slots by table row and position: ids_RP int64 and slots_RP int64."""

    def __init__(self, num_rows: int, context_len: int) -> None:
        self.ids_RP: Tensor = torch.zeros((num_rows, context_len), dtype=torch.int64)
        self.slots_RP: Tensor = torch.zeros((num_rows, context_len), dtype=torch.int64)

    def apply(self, writes: Iterable[TableWrite]) -> None:
        """Enter what a step knows anew."""
        for write in writes:
            row, start = write.table_row, write.start
            ids, slots = torch.as_tensor(write.ids), torch.as_tensor(write.slots)
            self.ids_RP[row, start : start + len(ids)] = ids
            self.slots_RP[row, start : start + len(slots)] = slots


def free_memory_bytes() -> int:
    """Memory that this process may still take: the system's, within its control group."""
    return min([_mem_available(), *cgroup_headroom(_CGROUP_ROOT, Path("/proc/self/cgroup"))])


def pool_tokens(free_bytes: int, fraction: float, bytes_per_slot: int, useful_tokens: int) -> int:
    """Slots for `fraction` of the free memory, no more than could ever be used at once."""
    return max(1, min(int(free_bytes * fraction) // bytes_per_slot, useful_tokens))


def _mem_available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo has no MemAvailable line")


def cgroup_headroom(root: Path, own: Path) -> list[int]:
    """What each control group above this process still allows, in bytes; none without limits.

    Cached file pages count as used there, but give way to whoever needs memory.
    """
    headroom: list[int] = []
    for group, names in _memory_groups(root, own):
        try:
            limit = (group / names.limit).read_text().strip()
            usage = int((group / names.usage).read_text())
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        except OSError:
            continue  # no such controller here
        if limit != "max":
            headroom.append(max(0, int(limit) - usage + int(stat.get(names.cached, 0))))
    return headroom


class _Names(NamedTuple):
    """Files of a control group, and the key of reclaimable pages in its memory.stat."""

    limit: str
    usage: str
    cached: str


_VERSION_1 = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = _Names("memory.max", "memory.current", "inactive_file")


def _memory_groups(root: Path, own: Path) -> Iterator[tuple[Path, _Names]]:
    """The process's control groups, from its own up to the root.

    Version 2 has one line `0::/path`, version 1 one for each controller: `4:memory:/path`.
    """
    for line in own.read_text().splitlines() if own.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top, names = (root / "memory", _VERSION_1) if controllers else (root, _VERSION_2)
        group = top / path.lstrip("/")
        for place in [group, *group.parents]:
            yield place, names
            if place == top:
                break
