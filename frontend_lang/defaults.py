"""The backend that programs of this context run on when none is named."""

from __future__ import annotations

from contextvars import ContextVar

from espalier.runtime.errors import InvalidRequest
from espalier.runtime.programs.executor import ProgramHost

_default_backend: ContextVar[ProgramHost | None] = ContextVar("default_backend", default=None)


def set_default_backend(backend: ProgramHost | None) -> None:
    """Run programs on `backend` where neither `run` nor `bind` names one.

    The default belongs to the current context (`contextvars`), not to the process: a thread
    that the caller starts itself begins without one.
    """
    _default_backend.set(backend)


def default_backend() -> ProgramHost:
    backend = _default_backend.get()
    if backend is None:
        raise InvalidRequest(
            "no backend: pass backend= to run() or bind(), or call set_default_backend()",
            param="backend",
        )
    return backend
