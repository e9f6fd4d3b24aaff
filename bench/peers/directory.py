"""Where the peers live on disk, and the steps that put them there. Steps are done once."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.peers.contender import OFFLINE

DEFAULT_DIRECTORY = Path(__file__).parents[2] / ".peers"  # out of sight of linters and tests
_CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"


Word = str | Path


class SetupError(Exception):
    """A peer could not be set up."""


def say(text: str) -> None:
    print(f"peers: {text}", flush=True)


def run(command: Sequence[Word], environment: Mapping[str, str] | None = None) -> None:
    """Run one command, shown before. Raises `SetupError`."""
    words = [str(word) for word in command]
    say(shlex.join(words))
    done = subprocess.run(words, env={**os.environ, **(environment or {})})
    if done.returncode:
        raise SetupError(f"{words[0]} ended with status {done.returncode}")


def make_once(target: Path, make: Callable[[Path], None]) -> None:
    """Have `make` fill a path that becomes `target`, unless there is one already."""
    if target.exists():
        say(f"have {target}")
        return
    partial = target.with_name(f"{target.name}.partial")
    if partial.is_dir():
        shutil.rmtree(partial)
    partial.parent.mkdir(parents=True, exist_ok=True)
    make(partial)
    partial.rename(target)


@dataclass(frozen=True, slots=True)
class Venv:
    """A virtual environment of a peer's own."""

    path: Path

    @property
    def python(self) -> Path:
        return self.path / "bin" / "python"

    def install(self, requirements: Sequence[str], unwanted: Sequence[str] = ()) -> None:
        """Install, then take away `unwanted`; nothing if these very ones are there already."""
        stamp = self.path / "installed.txt"
        wanted = "\n".join([*requirements, *(f"without {name}" for name in unwanted), ""])
        if stamp.is_file() and stamp.read_text() == wanted:
            say(f"have {self.path}")
            return
        if not self.python.exists():
            run([sys.executable, "-m", "venv", self.path])
        pip: list[Word] = [self.python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        torch = self.path / "torch.txt"  # the project's: a newer one may be a CUDA build
        torch.write_text(f"{_pinned('torch')}\n")
        run([*pip, "install", "--constraint", torch, *requirements])
        if unwanted:
            run([*pip, "uninstall", "--yes", *unwanted])
        stamp.write_text(wanted)

    def run(self, *arguments: Word) -> None:
        """Run this environment's Python, without a network."""
        run([self.python, *arguments], OFFLINE)


def _pinned(package: str) -> str:
    lines = _CONSTRAINTS.read_text().splitlines()
    return next(line for line in lines if line.startswith(f"{package}=="))


@dataclass(frozen=True, slots=True)
class PeersDirectory:
    """The paths of what several peers share."""

    root: Path

    @property
    def model(self) -> Path:
        """The default model in float32, in Hugging Face's layout."""
        return self.root / "model-f32"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def venv(self, peer: str) -> Venv:
        return Venv(self.root / peer / "venv")
