"""What ties a child process to the one that started it: the same imports, the same end."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def import_path() -> str:
    """This process's import path, as the `PYTHONPATH` of a child that is started with `-P`."""
    entries: list[object] = list(sys.path)
    # Python's own import passes over what is no text.
    return os.pathsep.join(e or os.getcwd() for e in entries if isinstance(e, str))


def die_with_parent(parent_pid: int) -> None:
    """Be killed when the thread that started this process ends, however it ends (Linux)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:  # it died before we asked
        os._exit(1)


def exit_words(status: int) -> str:
    """How a process ended; `status` is an exit status, or minus the number of a signal."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
