"""The private directory of a running runtime: where its sockets lie, for its user alone."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from ..errors import LaunchError

_PREFIX = "espalier-"
_LOCK = "launcher.lock"
_MAX_SOCKET_PATH = 107  # what the kernel takes
_LONGEST_NAME = "detokenizer.orders"


class PrivateDirectory:
    """Made with mode 0700, locked while its owner lives, removed by `close`.

    An owner that was killed leaves its directory behind; the next one of the same user takes
    it away, as its lock tells that nobody owns it any more.
    """

    def __init__(self, base: Path | None = None) -> None:
        try:
            base = base or Path(tempfile.gettempdir())
            _remove_abandoned(base)
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        except OSError as error:
            raise LaunchError(f"cannot make a directory for sockets: {error}") from error
        if len(os.fsencode(self.path / _LONGEST_NAME)) > _MAX_SOCKET_PATH:
            self.path.rmdir()
            raise LaunchError(f"{base} is too long a path for sockets: set TMPDIR to a shorter one")
        self._lock = _locked_file(self.path / _LOCK)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _locked_file(path: Path) -> int:
    """A new file that is locked as soon as it is there: until then nobody takes it for dead."""
    new = path.with_suffix(".new")
    fd = os.open(new, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    new.rename(path)
    return fd


def _remove_abandoned(base: Path) -> None:
    for lock in base.glob(f"{_PREFIX}*/{_LOCK}"):
        with suppress(FileNotFoundError):  # its owner removed it just now
            found = lock.lstat()
            if stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid():
                _remove_unless_locked(lock)


def _remove_unless_locked(lock: Path) -> None:
    fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return  # its owner lives
    else:
        shutil.rmtree(lock.parent, ignore_errors=True)
    finally:
        os.close(fd)
