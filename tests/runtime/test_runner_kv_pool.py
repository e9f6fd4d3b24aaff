"""How much memory the KV pool may take: control groups of both versions, and the flag. And what
of it is touched before it is needed."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import pytest
from torch import Tensor

from espalier.runtime.config import KVStorage
from espalier.runtime.models.config import ModelConfig, RopeConfig
from espalier.runtime.runner import kv_pool
from espalier.runtime.runner.kv_pool import (
    KVPool,
    cgroup_headroom,
    free_memory_bytes,
    pool_tokens,
)

GIB = 1 << 30


def group(path: Path, limit: str, usage: int, cached: int, *, version: int) -> None:
    path.mkdir(parents=True, exist_ok=True)
    names = {2: ("memory.max", "memory.current", "inactive_file")}
    names[1] = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    limit_file, usage_file, key = names[version]
    (path / limit_file).write_text(f"{limit}\n")
    (path / usage_file).write_text(f"{usage}\n")
    (path / "memory.stat").write_text(f"anon 5\n{key} {cached}\n")


def test_every_group_above_the_process_counts(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/service/worker\n")
    group(tmp_path / "service" / "worker", "max", 1 * GIB, 0, version=2)
    group(tmp_path / "service", str(4 * GIB), 3 * GIB, 0, version=2)
    assert cgroup_headroom(tmp_path, own) == [1 * GIB]


def test_cached_file_pages_are_free_to_take(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("4:cpu,memory:/box\n2:cpu:/other\n")
    group(tmp_path / "memory" / "box", str(4 * GIB), 3 * GIB, 2 * GIB, version=1)
    assert cgroup_headroom(tmp_path, own) == [3 * GIB]


def test_no_groups_no_limit(tmp_path: Path) -> None:
    assert cgroup_headroom(tmp_path, tmp_path / "missing") == []
    (tmp_path / "own").write_text("0::/\n")
    assert cgroup_headroom(tmp_path, tmp_path / "own") == []


def test_this_machine_has_some() -> None:
    assert free_memory_bytes() > 0


def test_the_pool_takes_its_share_but_no_more_than_is_useful() -> None:
    assert pool_tokens(1000, 0.5, bytes_per_slot=10, useful_tokens=999) == 50
    assert pool_tokens(1000, 0.5, bytes_per_slot=10, useful_tokens=7) == 7
    assert pool_tokens(0, 0.5, bytes_per_slot=10, useful_tokens=7) == 1


_CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=64,
    hidden_size=64,
    intermediate_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    rms_norm_eps=1e-5,
    rope=RopeConfig(theta=10_000.0),
    max_position=64,
    tie_word_embeddings=True,
)


def resident_nbytes(array: Tensor) -> int:
    """Bytes of a map's pages that are in memory (`mincore`)."""
    start = array.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    num_pages = -(-(array.data_ptr() + array.nbytes - start) // mmap.PAGESIZE)
    seen = (ctypes.c_ubyte * num_pages)()
    libc = ctypes.CDLL(None, use_errno=True)
    length = ctypes.c_size_t(num_pages * mmap.PAGESIZE)
    assert libc.mincore(ctypes.c_void_p(start), length, seen) == 0, ctypes.get_errno()
    return sum(page & 1 for page in seen) * mmap.PAGESIZE


@pytest.mark.parametrize("storage", ["float32", "int8"])
def test_memory_of_the_slots_that_come_next_is_touched(
    storage: KVStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = 40_000
    slot_nbytes = KVPool.bytes_per_slot(_CONFIG, storage)
    monkeypatch.setattr(kv_pool, "AHEAD_NBYTES", ahead * slot_nbytes)
    num_slots = 1_000_000
    pool = KVPool(_CONFIG, num_slots, storage)
    pool.v_LSKd[1, 500] = 3
    for used in (1, 100_000, 100_000, num_slots - 10, num_slots):
        while pool.touch_ahead(used):
            pass
        end = min(used + ahead, num_slots)
        arrays = [pool.k_LSKd, pool.v_LSKd, pool.k_scales_LSK, pool.v_scales_LSK]
        for layer in (layer for array in arrays if array is not None for layer in array):
            part = layer[used:end]
            assert part.nbytes <= resident_nbytes(part), (used, layer.shape)
    total = resident_nbytes(pool.k_LSKd) + resident_nbytes(pool.v_LSKd)
    assert total < 0.5 * (pool.k_LSKd.nbytes + pool.v_LSKd.nbytes)
    assert not pool.touch_ahead(0)
    assert pool.v_LSKd.count_nonzero() == 2 * 16, "what was there has changed"
    assert not pool.k_LSKd.any()
