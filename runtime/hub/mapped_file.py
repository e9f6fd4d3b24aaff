"""A file's bytes as read-only memory maps; knows no file format."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import ModelError

# What the kernel may map at one touch: its cache of a file is made of pieces of up to this size.
_FOLIO_NBYTES = 2 << 20

Bytes = npt.NDArray[np.uint8]


class MappedFile:
    """One file, mapped whole. Pages are read when touched and unmapped with the last view.

    Raises `ModelError` if the file can't be opened or is empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise ModelError(f"{path}: the file is empty") from None
        except OSError as error:
            raise ModelError(f"{path}: {error.strerror}") from error
        self.size = len(self._map)

    @property
    def buffer(self) -> mmap.mmap:
        """The whole file, for `struct` and slices."""
        return self._map

    def view(self, offset: int, nbytes: int) -> Bytes:
        """Bytes `[offset, offset + nbytes)`, not copied; the caller has checked the range."""
        assert min(offset, nbytes) >= 0 and offset + nbytes <= self.size, (offset, nbytes)
        return np.frombuffer(self._map, np.uint8, nbytes, offset)

    def release(self, offset: int, nbytes: int) -> None:
        """Give the pages under a range back to the system; touching them reads them again.

        Its neighbours go as well, as far as touching the range may have mapped them.
        """
        start = offset - offset % _FOLIO_NBYTES
        length = min(-(-(offset + nbytes) // _FOLIO_NBYTES) * _FOLIO_NBYTES, self.size) - start
        if nbytes > 0 and length > 0:
            self._map.madvise(mmap.MADV_DONTNEED, start, length)
