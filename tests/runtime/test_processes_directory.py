"""The private directory: its mode, whose it is, and what happens to the dead ones beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from espalier.runtime.errors import LaunchError
from espalier.runtime.processes.directory import PrivateDirectory


def test_it_is_for_its_user_alone_and_goes_with_its_owner(tmp_path: Path) -> None:
    directory = PrivateDirectory(tmp_path)
    assert directory.path.parent == tmp_path
    assert directory.path.stat().st_mode & 0o777 == 0o700
    (directory.path / "socket").touch()
    directory.close()
    assert not list(tmp_path.iterdir())


def test_the_dead_ones_go_and_the_living_stay(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; import os, sys; "
        "from espalier.runtime.processes.directory import PrivateDirectory; "
        "kept = PrivateDirectory(Path(sys.argv[1])); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    [dead] = tmp_path.iterdir()
    first = PrivateDirectory(tmp_path)
    assert not dead.exists()
    second = PrivateDirectory(tmp_path)
    assert first.path.exists()
    first.close()
    second.close()


def test_nobody_is_taken_for_dead_while_it_begins(tmp_path: Path) -> None:
    def begin_and_end(_: int) -> bool:
        directory = PrivateDirectory(tmp_path)
        is_there = directory.path.exists()
        directory.close()
        return is_there

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(begin_and_end, range(400)))


def test_what_is_not_of_a_launcher_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "espalier-models").mkdir()
    (tmp_path / "espalier-models" / "lock").touch()
    (tmp_path / "espalier-a" / "launcher.lock").mkdir(parents=True)
    (tmp_path / "espalier-b").mkdir()
    (tmp_path / "mine").touch()
    (tmp_path / "espalier-b" / "launcher.lock").symlink_to(tmp_path / "mine")
    before = set(tmp_path.rglob("*"))
    PrivateDirectory(tmp_path).close()
    assert set(tmp_path.rglob("*")) == before


def test_a_place_that_can_t_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="nowhere"):
        PrivateDirectory(tmp_path / "nowhere")
    long = tmp_path / ("x" * 100)
    long.mkdir()
    with pytest.raises(LaunchError, match="set TMPDIR"):
        PrivateDirectory(long)
    assert not os.listdir(long)
