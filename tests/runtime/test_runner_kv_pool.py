"""How much memory the KV pool may take: control groups of both versions, and the flag."""

from __future__ import annotations

from pathlib import Path

from espalier.runtime.runner.kv_pool import cgroup_headroom, free_memory_bytes, pool_tokens

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
