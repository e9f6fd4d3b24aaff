"""The private directory: its mode, whose it is, and what happens to the dead ones beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from espalier.runtime.errors import LaunchError
from espalier.runtime.processes.directory import PrivateDirectory


@pytest.fixture
def base() -> Iterator[Path]:
    """Short: pytest's own directories may be too long for sockets."""
    with tempfile.TemporaryDirectory(prefix="e") as path:
        yield Path(path)


def test_it_is_for_its_user_alone_and_goes_with_its_owner(base: Path) -> None:
    directory = PrivateDirectory(base)
    assert directory.path.parent == base
    assert directory.path.stat().st_mode & 0o777 == 0o700
    (directory.path / "socket").touch()
    directory.close()
    assert not list(base.iterdir())


def test_the_dead_ones_go_and_the_living_stay(base: Path) -> None:
    code = (
        "from pathlib import Path; import os, sys; "
        "from espalier.runtime.processes.directory import PrivateDirectory; "
        "kept = PrivateDirectory(Path(sys.argv[1])); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, str(base)], check=True)
    [dead] = base.iterdir()
    first = PrivateDirectory(base)
    assert not dead.exists()
    second = PrivateDirectory(base)
    assert first.path.exists()
    first.close()
    second.close()


def test_nobody_is_taken_for_dead_while_it_begins(base: Path) -> None:
    def begin_and_end(_: int) -> bool:
        directory = PrivateDirectory(base)
        is_there = directory.path.exists()
        directory.close()
        return is_there

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(begin_and_end, range(400)))


def test_what_is_not_of_a_launcher_is_left_alone(base: Path) -> None:
    (base / "espalier-models").mkdir()
    (base / "espalier-models" / "lock").touch()
    (base / "espalier-a" / "launcher.lock").mkdir(parents=True)
    (base / "espalier-b").mkdir()
    (base / "mine").touch()
    (base / "espalier-b" / "launcher.lock").symlink_to(base / "mine")
    before = set(base.rglob("*"))
    PrivateDirectory(base).close()
    assert set(base.rglob("*")) == before


def test_a_place_that_can_t_be_used_is_named(base: Path) -> None:
    with pytest.raises(LaunchError, match="nowhere"):
        PrivateDirectory(base / "nowhere")
    long = base / ("x" * 100)
    long.mkdir()
    with pytest.raises(LaunchError, match="set TMPDIR"):
        PrivateDirectory(long)
    assert not os.listdir(long)
