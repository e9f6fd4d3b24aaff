"""What ties a child process to the one that started it: the same imports, the same end, a name."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_MAX_NAME = 15  # bytes


def import_path() -> str:
    """This process's import path, as the `PYTHONPATH` of a child that is started with `-P`."""
    entries: list[object] = list(sys.path)
    # Python's own import passes over what is no text.
    return os.pathsep.join(e or os.getcwd() for e in entries if isinstance(e, str))


def begin_as(role: str, parent_pid: int) -> None:
    """Be killed when the thread that started this process ends, however it ends; be listed as
    `esp-` and the role by ps and top (Linux). Called by the process's first thread."""
    name = f"esp-{role}".encode()
    assert len(name) <= _MAX_NAME, name
    _prctl(_PR_SET_NAME, name)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before we asked
        os._exit(1)


def _prctl(option: int, value: bytes | int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def exit_words(status: int) -> str:
    """How a process ended; `status` is an exit status, or minus the number of a signal."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
