"""Errors to HTTP: status codes and the one JSON shape of all routes; knows no route."""

from __future__ import annotations

import math

import orjson
from starlette.responses import Response

from ..errors import EspalierError, InvalidRequest, Overloaded, RequestFailed, Unavailable
from ..messages import FinishReason

_RETRY_AFTER_S = 1


class ModelNotFound(EspalierError):
    """No model is served under this name."""


class PayloadTooLarge(EspalierError):
    """The request body is longer than the server takes."""


class Unauthorized(EspalierError):
    """The API key is missing or wrong."""


class NotFound(EspalierError):
    """There is nothing under this path or name."""


_STATUSES: dict[type[EspalierError], int] = {
    InvalidRequest: 400,
    Unauthorized: 401,
    ModelNotFound: 404,
    NotFound: 404,
    PayloadTooLarge: 413,
    Overloaded: 429,
    Unavailable: 503,
}

_KINDS = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable",
}


def error_body(
    message: str,
    *,
    kind: str = "invalid_request_error",
    param: str | None = None,
    code: int | str | None = None,
) -> dict[str, object]:
    """An error as OpenAI's clients read it; `code` is the HTTP status where there is no other."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def kind_of_status(status: int) -> str:
    """The `type` of an error with this status."""
    return _KINDS.get(status, "invalid_request_error")


def status_of(error: EspalierError) -> int:
    """The HTTP status of `error`: 500 for what the client can't help."""
    for kind in type(error).__mro__:
        if kind in _STATUSES:
            return _STATUSES[kind]
    return 500


def body_of(error: EspalierError) -> dict[str, object]:
    """The JSON of `error`, in a response or as an event of a stream."""
    status = status_of(error)
    param = error.param if isinstance(error, InvalidRequest) else None
    code = "model_not_found" if isinstance(error, ModelNotFound) else status
    return error_body(str(error), kind=kind_of_status(status), param=param, code=code)


def error_response(error: EspalierError) -> Response:
    """The whole response for `error`."""
    status = status_of(error)
    headers = None
    if isinstance(error, Unavailable):
        seconds = error.retry_after_s if isinstance(error, Overloaded) else _RETRY_AFTER_S
        headers = {"Retry-After": str(max(1, math.ceil(seconds)))}
    return Response(orjson.dumps(body_of(error)), status, headers, "application/json")


def failure_of(finish: FinishReason) -> EspalierError | None:
    """What an end of kind "error" means to an HTTP client; aborts are results here."""
    if finish.kind != "error":
        return None
    if finish.bad_request:
        return InvalidRequest(finish.message)
    if finish.retry_after_s is not None:
        return Overloaded(finish.message, finish.retry_after_s)
    return Unavailable(finish.message) if finish.lost else RequestFailed(finish.message)


def raise_if_failed(finish: FinishReason) -> None:
    """Raise the error that `finish` is, if it is one."""
    failure = failure_of(finish)
    if failure is not None:
        raise failure
