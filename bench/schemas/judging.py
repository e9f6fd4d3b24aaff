"""A contender's answers for one group after another, from a process that may be killed."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from bench.schemas.data import Group

ROOT = Path(__file__).resolve().parents[2]
START_S = 60.0
MATCH_S = 60.0
"""For all instances of a group, in all spellings."""


@dataclass(frozen=True, slots=True)
class Judged:
    """What became of a group: `accepted` has for each instance a spelling that was accepted."""

    accepted: tuple[str | None, ...] = ()
    compile_s: float | None = None
    refusal: str | None = None
    is_late: bool = False


class Ended(Exception):
    """The process ended instead of replying."""


class DidNotStart(Exception):
    """A contender that can't be constructed is no result: its engine is missing, say."""


class Judge:
    """One contender. Its process is started when there is none, and killed when it is late."""

    def __init__(self, name: str, path: str, deadline_s: float) -> None:
        self.name = name
        self._path = path
        self._deadline_s = deadline_s
        self._process: subprocess.Popen[bytes] | None = None
        self._read = b""

    def judge(self, group: Group) -> Judged:
        if self._process is None:
            self._start()
        try:
            return self._judge(group)
        except TimeoutError:
            self.close()
            return Judged(is_late=True)
        except Ended as ended:
            self.close()
            return Judged(refusal=f"crashed: {ended}")

    def close(self) -> None:
        process, self._process, self._read = self._process, None, b""
        if process is not None:
            process.kill()
            process.wait()
            assert process.stdin is not None and process.stdout is not None
            process.stdout.close()
            with suppress(BrokenPipeError):  # of a job that was not read
                process.stdin.close()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.schemas.worker", self._path],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            self._reply(START_S)
        except (Ended, TimeoutError) as trouble:
            self.close()
            raise DidNotStart(f"{self.name} ({self._path}): {trouble}") from trouble

    def _judge(self, group: Group) -> Judged:
        job = {"schema": group.schema, "instances": [each.text for each in group.instances]}
        started = monotonic()
        self._send(json.dumps(job).encode() + b"\n")
        reply = self._reply(self._deadline_s)
        compile_s = monotonic() - started
        if "refused" in reply:
            return Judged(refusal=reply["refused"])
        return Judged(tuple(self._reply(MATCH_S)["accepted"]), compile_s)

    def _send(self, line: bytes) -> None:
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Ended(f"status {self._process.wait()}") from None

    def _reply(self, within_s: float) -> dict[str, Any]:
        """The next line; `TimeoutError` if it does not come, `Ended` if it can't."""
        assert self._process is not None and self._process.stdout is not None
        pipe, ends = self._process.stdout.fileno(), monotonic() + within_s
        while b"\n" not in self._read:
            if not select.select([pipe], [], [], max(0.0, ends - monotonic()))[0]:
                raise TimeoutError(f"no reply within {within_s:g} s")
            chunk = os.read(pipe, 1 << 16)
            if not chunk:
                raise Ended(f"status {self._process.wait()}")
            self._read += chunk
        line, _, self._read = self._read.partition(b"\n")
        reply: dict[str, Any] = json.loads(line)
        if "raised" in reply:
            raise Ended(reply["raised"])
        return reply
