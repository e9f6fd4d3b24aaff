"""Every error that a user of Espalier can meet; knows nothing else of the runtime.

Bad input raises `InvalidRequest` before a request is accepted. An accepted request that
cannot finish ends with one final message, which the client side raises as `RequestFailed`.
"""

from __future__ import annotations


class EspalierError(Exception):
    """Base of all errors that users of Espalier can cause or meet."""


class InvalidRequest(EspalierError):
    """The request is refused; `param` names the offending field where there is one."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class RequestFailed(EspalierError):
    """An accepted request ended without a result: its step failed, or its grammar did."""


class RequestAborted(RequestFailed):
    """An accepted request was aborted before its end."""


class Unavailable(EspalierError):
    """The runtime takes no request now: it is full, starts, recovers or drains. Try again."""


class Overloaded(Unavailable):
    """The request would wait longer than promised. Try again after `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineClosed(EspalierError):
    """The engine is closed, or its scheduler stopped; the message says why."""


class LaunchError(EspalierError):
    """The runtime's processes can't start, or can't be kept alive."""


class ModelError(EspalierError):
    """A model can't be loaded: the message names the file, tensor or field at fault."""


class PullError(EspalierError):
    """A model can't be fetched: the message says what to do about it."""
