"""Arena memory: aligned, zero, never shared between two takers; huge pages where there are."""

from __future__ import annotations

import gc
import mmap
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from espalier.kernels.arena import ALIGNMENT, HUGE_PAGE_NBYTES, Arena, huge_empty

_CHUNK = 64 << 20
_SIZES = st.one_of(
    st.integers(0, 300),
    st.integers(_CHUNK // 3, _CHUNK // 2),
    st.sampled_from([_CHUNK - 1, _CHUNK, _CHUNK + 1, 2 * _CHUNK + 77]),
)


@given(st.lists(_SIZES, max_size=8))
def test_no_two_takers_share_a_byte(sizes: list[int]) -> None:
    arena = Arena()
    taken = [arena.take(nbytes) for nbytes in sizes]
    assert [(memory.dtype, tuple(memory.shape)) for memory in taken] == [
        (torch.uint8, (nbytes,)) for nbytes in sizes
    ]
    ranges = sorted((m.data_ptr(), m.data_ptr() + len(m)) for m in taken if len(m))
    assert all(start % ALIGNMENT == 0 for start, _ in ranges)
    assert all(end <= start for (_, end), (start, _) in zip(ranges, ranges[1:], strict=False))


def test_memory_is_zero_and_outlives_its_arena() -> None:
    arena = Arena()
    first, second = arena.take(1000), arena.take(_CHUNK + 1000)
    assert not first.any() and not second.any()
    first.fill_(7)
    second.fill_(9)
    rest = arena.take(1000)
    del arena
    gc.collect()
    assert (first == 7).all() and (second == 9).all() and not rest.any()


def test_small_requests_share_a_chunk() -> None:
    arena = Arena()
    first, second = arena.take(1), arena.take(1)
    assert second.data_ptr() - first.data_ptr() == ALIGNMENT
    assert first.data_ptr() % HUGE_PAGE_NBYTES == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_huge_empty(dtype: torch.dtype) -> None:
    pool = huge_empty((2, 1000, 3, 8), dtype)
    assert (pool.shape, pool.dtype) == ((2, 1000, 3, 8), dtype)
    assert pool.is_contiguous()
    assert pool.data_ptr() % HUGE_PAGE_NBYTES == 0
    pool[1, 999, 2] = 5
    assert (pool[1, 999, 2] == 5).all()


def test_untouched_pages_cost_nothing() -> None:
    before = _resident_nbytes()
    pool = huge_empty((1 << 30,), torch.uint8)
    pool[0] = 1
    assert _resident_nbytes() - before < 100 << 20
    assert len(pool) == 1 << 30


def test_pages_are_huge_where_the_system_has_them() -> None:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not hasattr(mmap, "MADV_HUGEPAGE") or not setting.exists():
        pytest.skip("no transparent huge pages on this platform")
    memory = huge_empty((8 << 20,), torch.uint8)
    assert "hg" in _advice_of_map(memory.data_ptr())


def _resident_nbytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def _advice_of_map(address: int) -> list[str]:
    """The flags of the map that holds `address`, as the system lists them."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if "-" in name and not name.endswith(":"):
            start, end = (int(bound, 16) for bound in name.split("-"))
            inside = start <= address < end
        elif inside and name == "VmFlags:":
            return rest.split()
    raise AssertionError(f"no map holds {address:#x}")
