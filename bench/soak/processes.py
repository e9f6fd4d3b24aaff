"""The processes of a server as the kernel sees them: who they are, what memory they hold.

All that belongs to one server has its directory for temporary files in its environment, whoever
its parent is by now: that is how one finds what it leaks.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_SAMPLE_S = 1.0
_MIB = float(1 << 20)


@dataclass(frozen=True, slots=True)
class Sample:
    """The resident memory of one process at one time."""

    at: float
    role: str
    pid: int
    rss_mib: float


@dataclass(frozen=True, slots=True)
class Slope:
    """Resident memory of one process over a window: its trend by least squares."""

    role: str
    mib_per_min: float
    grown_mib: float
    last_mib: float
    window_s: float


def family(temporary: Path) -> dict[int, str]:
    """Every process, zombies aside, that was started with this TMPDIR, with its role."""
    found: dict[int, str] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
            name = (entry / "comm").read_text().strip()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if f"TMPDIR={temporary}".encode() not in environment:
            continue
        role = name.removeprefix("esp-")
        found[int(entry.name)] = "launcher" if role == name else role
    return found


def pid_of(temporary: Path, role: str) -> int | None:
    """The process in this role, if there is exactly one."""
    pids = [pid for pid, found in family(temporary).items() if found == role]
    return pids[0] if len(pids) == 1 else None


def open_files(temporary: Path) -> dict[str, int]:
    """How many files, sockets and pipes each process has open, by role."""
    found: dict[str, int] = {}
    for pid, role in family(temporary).items():
        try:
            found[role] = len(os.listdir(f"/proc/{pid}/fd"))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended just now
    return found


class Watch:
    """Samples of all processes of a server, once a second."""

    def __init__(self, temporary: Path) -> None:
        self._temporary = temporary
        self.samples: list[Sample] = []

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            for pid, role in family(self._temporary).items():
                self._sample(pid, role)
            await asyncio.sleep(_SAMPLE_S)

    def _sample(self, pid: int, role: str) -> None:
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (FileNotFoundError, ProcessLookupError):
            return  # it ended just now
        rss_mib = pages * os.sysconf("SC_PAGE_SIZE") / _MIB
        self.samples.append(Sample(time.monotonic(), role, pid, rss_mib))

    def slopes(self, since: float) -> list[Slope]:
        """Of each process that lived from `since` to the last sample."""
        by_pid: dict[int, list[Sample]] = defaultdict(list)
        for sample in self.samples:
            if sample.at >= since:
                by_pid[sample.pid].append(sample)
        longest = max((series[-1].at - series[0].at for series in by_pid.values()), default=0.0)
        return [
            slope_of(series)
            for series in by_pid.values()
            if len(series) > 2 and series[-1].at - series[0].at > 0.9 * longest
        ]


def slope_of(series: Sequence[Sample]) -> Slope:
    """The trend of at least two samples of one process."""
    times = np.array([sample.at for sample in series])
    sizes = np.array([sample.rss_mib for sample in series])
    centred = times - times.mean()
    per_s = float(centred @ sizes / (centred @ centred))
    return Slope(
        role=series[-1].role,  # at first it may not have its name yet
        mib_per_min=60.0 * per_s,
        grown_mib=float(sizes[-1] - sizes[0]),
        last_mib=float(sizes[-1]),
        window_s=float(times[-1] - times[0]),
    )
