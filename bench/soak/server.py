"""`espalier serve` as users run it, in a directory for temporary files of its own."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.soak.processes import family
from bench.soak.wire import Broken, get

_START_S = 120.0
_END_S = 90.0
_POLL_S = 0.1
_REPOSITORY = Path(__file__).parents[2]


class Failed(Exception):
    """The server did not do what a soak can't go on without."""


class Server:
    """One server, up from `__aenter__` to `stop`; `__aexit__` kills what is left of it."""

    def __init__(self, model: Path, flags: Sequence[str], directory: Path) -> None:
        """`directory` is new; its path must be short, as sockets lie below it."""
        self._command = [sys.executable, "-m", "espalier", "serve", str(model), "--port", "0"]
        self.temporary = directory / "tmp"
        self._command += [flag.replace("{temporary}", str(self.temporary)) for flag in flags]
        self._log = directory / "log"

    async def __aenter__(self) -> Self:
        self.temporary.mkdir(parents=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=_REPOSITORY,
                env={**os.environ, "TMPDIR": str(self.temporary)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_S
        while (found := re.search(r"at http://([\d.]+):(\d+) \(", self.log())) is None:
            if self._process.poll() is not None or time.monotonic() > deadline:
                await self.__aexit__(None, None, None)
                raise Failed(f"it did not start: {self.log()[-2000:]}")
            await asyncio.sleep(_POLL_S)
        self.address = found[1], int(found[2])
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()  # its children die with it
            self._process.wait()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def log(self) -> str:
        """What it and its processes have said."""
        return self._log.read_text(errors="replace")

    async def state(self) -> dict[str, Any] | None:
        """`/server_info`; None where the scheduler did not answer in time."""
        try:
            reply = await get(self.address, "/server_info")
        except Broken:
            return None
        info = json.loads(reply.body)
        return info if reply.status == 200 and info["internal_states"] else None

    async def stop(self) -> int | None:
        """SIGTERM; its exit status, None if it does not end."""
        self._process.send_signal(signal.SIGTERM)
        try:
            return await asyncio.to_thread(self._process.wait, _END_S)
        except subprocess.TimeoutExpired:
            return None

    def leftovers(self) -> list[str]:
        """Processes and files that are still there after its end."""
        running = [f"process {pid} ({role})" for pid, role in family(self.temporary).items()]
        return [*running, *(f"file {path.name}" for path in self.temporary.rglob("*"))]
