"""Takes one wheel from the user's package index with pip; knows nothing of models.

pip runs as a child, so that the user's index, proxy and certificate settings hold; -P keeps
modules in the current directory from standing in for pip's.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from ..errors import PullError

_POLL_S = 0.1
_NUM_QUOTED_LINES = 6


def download_wheel(requirement: str, staging: Path, on_bytes: Callable[[int], None]) -> Path:
    """Download `requirement`, without its dependencies, into the empty directory `staging`.

    Everything pip writes on the way lies in `staging` too; its size so far is reported to
    `on_bytes`. Raises `PullError` with pip's last words if pip is missing or fails. If the
    wait is interrupted, pip is killed.
    """
    if importlib.util.find_spec("pip") is None:
        raise PullError(
            f"pip is not installed for {sys.executable}, and `espalier pull` downloads with it: "
            f"run `{sys.executable} -m ensurepip`, then pull again"
        )
    wheels, temporary, log = staging / "wheels", staging / "tmp", staging / "pip.log"
    wheels.mkdir()
    temporary.mkdir()
    command = [
        *(sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:"),
        *("--no-cache-dir", "--no-input", "--progress-bar=off", "--disable-pip-version-check"),
        *("--dest", str(wheels), requirement),
    ]
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            env={**os.environ, "TMPDIR": str(temporary)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            _wait(child, staging, on_bytes)
        finally:
            child.kill()
            child.wait()
    if child.returncode != 0:
        raise PullError(_explain_failure(requirement, child.returncode, log))
    found = list(wheels.glob("*.whl"))
    assert len(found) == 1, found
    return found[0]


def _wait(child: subprocess.Popen[bytes], staging: Path, on_bytes: Callable[[int], None]) -> None:
    while True:
        try:
            child.wait(_POLL_S)
            return
        except subprocess.TimeoutExpired:
            on_bytes(_bytes_under(staging))


def _bytes_under(directory: Path) -> int:
    """Size of all files under a directory that another process is changing."""
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue  # moved or deleted since the directory was listed
    return total


def _explain_failure(requirement: str, status: int, log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    quoted = "\n".join(f"  {line}" for line in list(filter(None, lines))[-_NUM_QUOTED_LINES:])
    if os.strerror(errno.ENOSPC) in quoted:
        advice = "free some space and pull again"
    else:
        advice = "check the network and pip's index settings (`pip config list`) and pull again"
    return (
        f"pip could not download {requirement} (exit status {status}): {advice}. "
        f"pip said:\n{quoted}"
    )
