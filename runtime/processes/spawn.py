"""Starts one child process of the launcher; knows nothing of what it does."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..config import ServerConfig
from ..lifeline import exit_words, import_path
from .child import Settings


@dataclass(slots=True)
class Child:
    """A running process, or one that has ended and was not waited for yet.

    `fd` becomes readable when it ends. Its standard input stays open if it takes orders there.
    """

    popen: subprocess.Popen[bytes]
    fd: int

    @property
    def pid(self) -> int:
        return self.popen.pid

    def tell(self, line: bytes) -> None:
        """Write to its standard input. One that has ended hears nothing, as its `fd` tells."""
        assert self.popen.stdin is not None
        with suppress(BrokenPipeError):
            self.popen.stdin.write(line)
            self.popen.stdin.flush()

    def end_input(self) -> None:
        """Close its standard input. Idempotent."""
        if self.popen.stdin is not None:
            with suppress(BrokenPipeError):  # of what it was told, and has not read
                self.popen.stdin.close()

    def kill(self) -> None:
        self.popen.kill()

    def wait(self) -> str:
        """How it ended, in words; to be called once, when `fd` is readable."""
        status = self.popen.wait()
        os.close(self.fd)
        self.end_input()
        return exit_words(status)


def spawn(
    module: str, config: ServerConfig, directory: Path, *, fd: int = -1, keep_stdin: bool = False
) -> Child:
    """Run `module` of this package as a process, with this process's import path.

    A session of its own, so that Ctrl-C in the terminal reaches the launcher alone. It dies
    with the thread that calls this.
    """
    popen = subprocess.Popen(
        [sys.executable, "-P", "-m", "espalier.runtime.processes.start", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": import_path()},
        pass_fds=() if fd < 0 else (fd,),
        start_new_session=True,
    )
    child = Child(popen, os.pidfd_open(popen.pid))
    child.tell(Settings(config, str(directory), os.getpid(), fd).encode())
    if not keep_stdin:
        child.end_input()
    return child
