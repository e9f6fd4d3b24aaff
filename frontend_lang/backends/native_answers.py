"""Answers of the server's native API, into what the in-process engine gives.

Knows no transport. A program can't tell the results of the two apart, nor the errors.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from espalier.runtime.errors import (
    EspalierError,
    InvalidRequest,
    RequestAborted,
    RequestFailed,
    Unavailable,
)
from espalier.runtime.messages import FinishReason, GrammarReport, TokenLogprob, Usage
from espalier.runtime.programs.backend import GenerateCall, GenerateChunk, RoleMarkers

T = TypeVar("T")

_OUR_NAMES = {
    "sampling_seed": "seed",
    "top_logprobs_num": "top_logprobs",
    "logprob_start_len": "prompt_start",
}


class _Error(msgspec.Struct):
    message: str
    param: str | None = None
    code: int | str | None = None


class _Failure(msgspec.Struct):
    error: _Error


class _Finish(msgspec.Struct):
    type: str
    matched: str | int | None = None
    message: str = ""
    incomplete: bool = False


_Entry = tuple[float | None, int, str | None]  # log-probability, token id, its text


class _MetaInfo(msgspec.Struct):
    finish_reason: _Finish | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    forced_tokens: int = 0
    num_retractions: int = 0
    kept_tokens: int = 0
    grammar: GrammarReport | None = None
    output_token_logprobs: list[_Entry] | None = None
    output_top_logprobs: list[list[_Entry] | None] | None = None
    input_token_logprobs: list[_Entry] | None = None
    input_top_logprobs: list[list[_Entry] | None] | None = None
    forced: tuple[int, ...] = ()


class _Output(msgspec.Struct):
    """One event of a stream, or one of the results of a batch."""

    text: str = ""
    output_ids: tuple[int, ...] = ()
    index: int = 0
    meta_info: _MetaInfo = msgspec.field(default_factory=_MetaInfo)
    error: _Error | None = None


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _Flushed(msgspec.Struct):
    num_flushed_tokens: int


class ChunkReader:
    """Reads the events of one call's stream."""

    def __init__(self, call: GenerateCall) -> None:
        self._open = set(range(call.sampling.n))
        self._logprobs = call.logprobs

    def take(self, event: bytes) -> GenerateChunk:
        """The chunk of one event; raises the error that it tells of."""
        output = _decoded(event, _Output)
        if output.error is not None:
            raise _stream_error(output.error)
        if output.index not in self._open:
            raise RequestFailed(f"the server sent output of choice {output.index}, which is over")
        meta, options = output.meta_info, self._logprobs
        finish = _finish(meta)
        if finish is not None:
            self._open.remove(output.index)
        logprobs = prompt_logprobs = None
        if options is not None and options.output:
            logprobs = _entries(meta.output_token_logprobs, meta.output_top_logprobs)
        if options is not None and options.prompt_start is not None:
            prompt_logprobs = _entries(meta.input_token_logprobs, meta.input_top_logprobs)
        return GenerateChunk(
            choice=output.index,
            text=output.text,
            ids=output.output_ids,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            finish=finish,
            usage=None if finish is None else _usage(meta),
            num_kept_tokens=0 if finish is None else meta.kept_tokens,
            grammar=meta.grammar,
            forced=meta.forced,
        )

    def check_ended(self) -> None:
        """The stream has ended: raises `RequestFailed` if a choice has not."""
        if self._open:
            raise RequestFailed("the server's stream ended without a finish reason")


def scores_of(answer: bytes, count: int) -> list[list[TokenLogprob]]:
    """The log-probabilities of each of the `count` continuations of a `score_body`."""
    outputs = _decoded(answer, list[_Output])
    if len(outputs) != count:
        raise RequestFailed(f"the server answered {len(outputs)} of {count} sequences")
    for output in outputs:
        if _finish(output.meta_info) is None:
            raise RequestFailed("the server's answer has no finish reason")
    metas = [output.meta_info for output in outputs]
    return [
        list(_entries(meta.input_token_logprobs, meta.input_top_logprobs) or ()) for meta in metas
    ]


def tokens_of(answer: bytes) -> list[int]:
    return _decoded(answer, _Tokens).tokens


def role_markers_of(answer: bytes) -> RoleMarkers:
    return _decoded(answer, RoleMarkers)


def num_flushed_of(answer: bytes) -> int:
    return _decoded(answer, _Flushed).num_flushed_tokens


def object_of(answer: bytes) -> dict[str, Any]:
    """An answer that is handed on as it is."""
    return _decoded(answer, dict[str, Any])


def error_of(status: int, answer: bytes, url: str) -> EspalierError:
    """What an answer with another status than 200 means to the caller."""
    try:
        failure = msgspec.json.decode(answer, type=_Failure).error
    except msgspec.DecodeError:
        text = answer[:200].decode("utf-8", "replace").strip()
        failure = _Error(f"{url} answered with status {status}" + (f": {text}" if text else ""))
    if status in (429, 502, 503, 504):
        return Unavailable(failure.message)
    if 400 <= status < 500:
        return _refusal(failure)
    return RequestFailed(failure.message)


def _stream_error(failure: _Error) -> EspalierError:
    """The request had been accepted: only if it was its own fault is it a bad one."""
    return _refusal(failure) if failure.code == 400 else RequestFailed(failure.message)


def _refusal(failure: _Error) -> InvalidRequest:
    param = failure.param
    if param is not None:
        param = param.removeprefix("sampling_params.")
        param = _OUR_NAMES.get(param, param)
    return InvalidRequest(failure.message, param=param)


def _finish(meta: _MetaInfo) -> FinishReason | None:
    reason = meta.finish_reason
    if reason is None:
        return None
    match reason.type:
        case "stop":
            return FinishReason(kind="stop", matched=reason.matched)
        case "length":
            return FinishReason(kind="length", incomplete=reason.incomplete)
        case "abort":
            raise RequestAborted(reason.message)
        case _:
            raise RequestFailed(f"unknown finish reason {reason.type!r}: {reason.message}")


def _usage(meta: _MetaInfo) -> Usage:
    return Usage(
        prompt_tokens=meta.prompt_tokens,
        completion_tokens=meta.completion_tokens,
        cached_tokens=meta.cached_tokens,
        forced_tokens=meta.forced_tokens,
        num_retractions=meta.num_retractions,
    )


def _entries(
    entries: list[_Entry] | None, tops: list[list[_Entry] | None] | None
) -> tuple[TokenLogprob, ...] | None:
    """What there is for each position; None where there is no position."""
    if not entries:
        return None
    at_each = tops or [None] * len(entries)
    if len(at_each) != len(entries):
        raise RequestFailed(f"the server sent {len(at_each)} tops for {len(entries)} tokens")
    return tuple(
        TokenLogprob(token_id, logprob, _top(top))
        for (logprob, token_id, _), top in zip(entries, at_each, strict=True)
    )


def _top(entries: list[_Entry] | None) -> tuple[tuple[int, float], ...]:
    return tuple(
        (token_id, logprob) for logprob, token_id, _ in entries or () if logprob is not None
    )


def _decoded(answer: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer, type=kind)
    except msgspec.DecodeError as error:
        raise RequestFailed(f"the server's answer can't be read: {error}") from error
