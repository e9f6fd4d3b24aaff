"""Request bodies: read within a bound, parsed into structs; every fault names its field."""

from __future__ import annotations

import json
import math
import re
from functools import cache
from typing import NoReturn, TypeVar, cast

import msgspec
from starlette.requests import ClientDisconnect, Request

from ..errors import InvalidRequest
from .errors import PayloadTooLarge
from .responses import ClientGone

T = TypeVar("T")

_PATH = re.compile(r" - at (?:`key` in )?`\$(?P<path>.*)`$")
_FIELD = re.compile(r"Object (?:contains unknown|missing required) field `(?P<name>.*)`$")
_NON_FINITE = re.compile(rb"NaN|Infinity")
_MAX_EXPLAINED_BYTES = 1 << 20


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body. Raises `PayloadTooLarge` as soon as it is known to be longer."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > max_bytes:
        _refuse_length(max_bytes)
    chunks: list[bytes] = []
    num_bytes = 0
    try:
        async for chunk in request.stream():
            num_bytes += len(chunk)
            if num_bytes > max_bytes:
                _refuse_length(max_bytes)
            chunks.append(chunk)
    except ClientDisconnect:
        raise ClientGone from None
    return b"".join(chunks)


def parse(body: bytes, kind: type[T]) -> T:
    """`body` as a `kind`.

    Raises `InvalidRequest` for whatever is not JSON of that shape; `param` is the path of
    the field at fault, as the caller wrote it: `sampling_params.top_p`, `input_ids[3]`.
    """
    if not body.strip():
        raise InvalidRequest("the request has no body: a JSON object is needed")
    try:
        return cast(T, _decoder(cast("type", kind)).decode(body))
    except msgspec.ValidationError as error:
        _refuse_value(str(error))
    except msgspec.DecodeError as error:
        _refuse_text(body, str(error))
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply") from None


@cache
def _decoder(kind: type) -> msgspec.json.Decoder[object]:
    return msgspec.json.Decoder(kind)


def _refuse_length(max_bytes: int) -> NoReturn:
    raise PayloadTooLarge(f"the body is longer than {max_bytes} bytes, the most this server takes")


def _refuse_value(message: str) -> NoReturn:
    """`message` is msgspec's: "Expected `int`, got `str` - at `$.input_ids[3]`"."""
    found = _PATH.search(message)
    path = found["path"].removesuffix("[...]").removeprefix(".") if found else ""
    what = message[: found.start()] if found else message
    field = _FIELD.match(what)
    if field is not None:
        path = f"{path}.{field['name']}" if path else field["name"]
        unknown = "unknown" in what[: field.start("name")]
        what = "unknown field" if unknown else "required field is missing"
    raise InvalidRequest(f"{path}: {what}" if path else what, param=path or None)


def _refuse_text(body: bytes, message: str) -> NoReturn:
    """`body` is no JSON; NaN and infinity, which some clients write, are named by their field."""
    path = _path_of_non_finite(body)
    if path is not None:
        raise InvalidRequest(f"{path}: NaN and Infinity are not JSON numbers", param=path or None)
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the body is not valid UTF-8: {error.reason}") from None
    raise InvalidRequest(f"the body is not valid JSON: {message}")


def _path_of_non_finite(body: bytes) -> str | None:
    """Where the first NaN or infinity stands, if that is the trouble with `body`."""
    if len(body) > _MAX_EXPLAINED_BYTES or not _NON_FINITE.search(body):
        return None
    try:
        data: object = json.loads(body)
    except (ValueError, RecursionError):
        return None
    pending = [("", data)]
    while pending:
        path, value = pending.pop()
        if isinstance(value, float) and not math.isfinite(value):
            return path.removeprefix(".")
        if isinstance(value, dict):
            items = cast("dict[str, object]", value).items()
            pending += [(f"{path}.{name}", item) for name, item in items if _is_suspect(item)]
        elif isinstance(value, list):
            values = enumerate(cast("list[object]", value))
            pending += [(f"{path}[{i}]", item) for i, item in values if _is_suspect(item)]
    return None


def _is_suspect(value: object) -> bool:
    """May be, or contain, a number that is not finite."""
    return isinstance(value, float | dict | list)
