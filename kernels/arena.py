"""Memory for weights and KV in large pages; knows nothing of what lies in it.

A step reads all weights once. Under pages of 4 KiB the processor waits for page tables
instead: transparent huge pages double the rate on virtual machines.
"""

from __future__ import annotations

import errno
import math
import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

HUGE_PAGE_NBYTES = 2 << 20
ALIGNMENT = 64  # of what an arena gives out: a cache line, and the widest vector
_CHUNK_NBYTES = 64 << 20


class Arena:
    """Gives out memory that is never taken back: it goes when the last tensor in it does.

    The memory is zero, and private to the process: forks share its pages until one writes.
    """

    def __init__(self) -> None:
        self._rest = torch.empty(0, dtype=torch.uint8)  # of the newest chunk

    def take(self, nbytes: int) -> Tensor:
        """`nbytes` zeros: a vector of uint8, aligned, that shares no byte with any other."""
        taken = -(-nbytes // ALIGNMENT) * ALIGNMENT
        if taken > _CHUNK_NBYTES:
            return _huge_zeros(nbytes)
        if taken > len(self._rest):
            self._rest = _huge_zeros(_CHUNK_NBYTES)
        memory, self._rest = self._rest[:nbytes], self._rest[taken:]
        return memory


def huge_empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor in a map of its own; its pages cost nothing until they are first written."""
    memory = _huge_zeros(math.prod(shape) * dtype.itemsize)
    return memory.view(dtype).view(*shape)


def _huge_zeros(nbytes: int) -> Tensor:
    """An anonymous map that begins with a huge page and lives as long as views of it."""
    pages = mmap.mmap(-1, nbytes + HUGE_PAGE_NBYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    _ask_for_huge_pages(pages)
    memory = torch.frombuffer(pages, dtype=torch.uint8)
    start = -memory.data_ptr() % HUGE_PAGE_NBYTES
    return memory[start : start + nbytes]


def _ask_for_huge_pages(pages: mmap.mmap) -> None:
    """It is advice: a system without huge pages, or a sandbox, gives ordinary ones."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    try:
        pages.madvise(mmap.MADV_HUGEPAGE)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EACCES):
            raise
