"""The device's memory of requests: the KV pool and the tables that index it.

Sizes are chosen from a flag or from the memory that is free, within the control group's
limit. Pages are touched when they are first written, so an idle pool costs nothing.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ..models.config import ModelConfig

_CGROUP_FILES = (  # (limit, usage) of version 2 and version 1
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
    ),
)


class KVPool:
    """Keys and values of every slot in every layer: k_LSKd and v_LSKd."""

    def __init__(self, config: ModelConfig, num_slots: int, dtype: torch.dtype) -> None:
        shape = (config.num_layers, num_slots, config.num_kv_heads, config.head_dim)
        self.k_LSKd = torch.empty(shape, dtype=dtype)
        self.v_LSKd = torch.empty(shape, dtype=dtype)

    @staticmethod
    def bytes_per_slot(config: ModelConfig, dtype: torch.dtype) -> int:
        return 2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize


class DeviceTables:
    """Token ids and slots by table row and position: ids_RP int64 and slots_RP int64."""

    def __init__(self, num_rows: int, context_len: int) -> None:
        self.ids_RP: Tensor = torch.zeros((num_rows, context_len), dtype=torch.int64)
        self.slots_RP: Tensor = torch.zeros((num_rows, context_len), dtype=torch.int64)


def free_memory_bytes() -> int:
    """Memory that this process may still take: the system's, within its control group."""
    return min([_mem_available(), *_cgroup_headroom()])


def pool_tokens(free_bytes: int, fraction: float, bytes_per_slot: int, useful_tokens: int) -> int:
    """Slots for `fraction` of the free memory, no more than could ever be used at once."""
    return max(1, min(int(free_bytes * fraction) // bytes_per_slot, useful_tokens))


def _mem_available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo has no MemAvailable line")


def _cgroup_headroom() -> list[int]:
    headroom: list[int] = []
    for limit_file, usage_file in _CGROUP_FILES:
        try:
            limit = Path(limit_file).read_text().strip()
            usage = Path(usage_file).read_text().strip()
        except OSError:
            continue  # not a system with this version
        if limit != "max":
            headroom.append(max(0, int(limit) - int(usage)))
    return headroom
