"""A contender's processes: started, waited for, measured at rest, and ended as one group."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.error import URLError
from urllib.request import urlopen

from bench.peers.completions import Endpoint
from bench.peers.contender import Contender

_REPOSITORY = Path(__file__).parents[2]
_POLL_S = 0.2
_END_S = 10.0


class DidNotStart(Exception):
    """A contender is not there, or did not come up; the message says why."""


class Server:
    """One contender, up from `__enter__` to `__exit__`."""

    def __init__(self, contender: Contender, logs: Path, start_limit_s: float) -> None:
        self.contender = contender
        self._log = logs / f"{contender.name.replace(' ', '-')}.log"
        self._start_limit_s = start_limit_s

    @property
    def name(self) -> str:
        return self.contender.name

    @property
    def pid(self) -> int:
        """Of its first process, and so of its group and its session."""
        return self._process.pid

    def __enter__(self) -> Self:
        """Raises `DidNotStart`; nothing of it runs then."""
        missing = [path for path in self.contender.needs if not path.exists()]
        if missing:
            raise DidNotStart(f"no {missing[0]}: run `make peers`")
        port = _free_port()
        self.endpoint = Endpoint(
            f"http://127.0.0.1:{port}", self.contender.fields, self.contender.schema_fields
        )
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self.contender.command(port),
                cwd=_REPOSITORY,
                env={**os.environ, **self.contender.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    def cpu_seconds(self) -> float:
        """CPU time of its running processes so far."""
        ticks = sum(_session_ticks(stat, self.pid) for stat in Path("/proc").glob("[0-9]*/stat"))
        return ticks / os.sysconf("SC_CLK_TCK")

    def _wait_until_ready(self) -> None:
        url = self.endpoint.url + self.contender.ready_path
        deadline = time.monotonic() + self._start_limit_s
        while not _answers(url):
            status = self._process.poll()
            if status is not None:
                raise DidNotStart(f"it ended with status {status}: {self._last_words()}")
            if time.monotonic() > deadline:
                raise DidNotStart(
                    f"not ready after {self._start_limit_s:.0f} s: {self._last_words()}"
                )
            time.sleep(_POLL_S)

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
        return f"{last[:200]} (all of it: {self._log})"

    def _end(self) -> None:
        """Ask, then kill: also what the first process leaves behind."""
        self._signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # nobody of the group is left
            os.killpg(self.pid, number)


def idle_share(servers: list[Server], seconds: float) -> dict[str, float]:
    """The share of a core that each takes while nothing is asked of it."""
    before = [server.cpu_seconds() for server in servers]
    time.sleep(seconds)
    return {
        server.name: (server.cpu_seconds() - start) / seconds
        for server, start in zip(servers, before, strict=True)
    }


def _session_ticks(stat: Path, session: int) -> int:
    """Clock ticks of a process, none if it is of another session or gone. See proc(5)."""
    try:
        fields = stat.read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(fields[11]) + int(fields[12]) if int(fields[3]) == session else 0


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (URLError, OSError):  # refused, 503, or not in time
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
