"""The client side of requests: from a call to tokenized requests, from token outputs to text.

No torch, no threads: whoever moves the messages drives it.
"""

from __future__ import annotations

import logging
import secrets
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import SupportsIndex

import msgspec
import numpy as np

from .detokenizer.incremental import IncrementalDetokenizer
from .errors import (
    EspalierError,
    InvalidRequest,
    Overloaded,
    RequestAborted,
    RequestFailed,
)
from .grammar.checks import check_constraint
from .messages import FinishReason, LogprobOptions, TokenIds, TokenizedRequest, TokenOutput
from .programs.backend import GenerateCall, GenerateChunk
from .sampling.params import SamplingParams
from .scheduler.limits import RequestLimits

logger = logging.getLogger(__name__)

_MIN_ID, _MAX_ID = -(2**31), 2**31 - 1  # what the array's type holds


def expand(call: GenerateCall, limits: RequestLimits) -> list[TokenizedRequest]:
    """One request for each choice of `call`, all with one id and seed, checked.

    Raises `InvalidRequest` for whatever can't be served.
    """
    return next(expand_each([call], limits))


def expand_each(
    calls: Iterable[GenerateCall], limits: RequestLimits
) -> Iterator[list[TokenizedRequest]]:
    """`expand` for each of `calls`, which live as long as this; what they share is checked once."""
    checked = set[int]()  # ids of objects
    for call in calls:
        if id(call.sampling) not in checked:
            call.sampling.validate(limits.vocab_size)
        if call.constraint is not None and id(call.constraint) not in checked:
            check_constraint(call.constraint)
        checked.update((id(call.sampling), id(call.constraint)))
        requests = _requests(call, limits)
        limits.check(requests[0])
        yield requests


def _requests(call: GenerateCall, limits: RequestLimits) -> list[TokenizedRequest]:
    sampling = _resolved(call.sampling, limits.vocab_size)
    rid = uuid.uuid4().hex
    input_ids = token_ids(call.input_ids)
    return [
        TokenizedRequest(
            rid=rid,
            choice=choice,
            input_ids=input_ids,
            sampling=sampling,
            constraint=call.constraint,
            logprobs=call.logprobs,
            namespace=call.namespace,
            hints=call.hints,
        )
        for choice in range(call.sampling.n)
    ]


def scoring_requests(
    prefix: Sequence[int], continuations: Sequence[Sequence[int]], limits: RequestLimits
) -> list[TokenizedRequest]:
    """Requests that generate nothing and report each continuation's log-probabilities."""
    if not continuations:
        raise InvalidRequest("there is nothing to score", param="continuations")
    rid = uuid.uuid4().hex
    requests = [
        TokenizedRequest(
            rid=rid,
            choice=choice,
            input_ids=token_ids([*prefix, *continuation]),
            sampling=SamplingParams(max_new_tokens=0, temperature=0.0, seed=0),
            logprobs=LogprobOptions(output=False, prompt_start=len(prefix)),
        )
        for choice, continuation in enumerate(continuations)
    ]
    for request in requests:
        limits.check(request)
    return requests


def token_ids(ids: Sequence[int]) -> TokenIds:
    """`ids` as an int32 array. Raises `InvalidRequest` at the first that isn't such an integer."""
    plain = all(kind is int for kind in set(map(type, ids)))  # the rule, and cheap
    if not plain or not ids or min(ids) < _MIN_ID or max(ids) > _MAX_ID:
        for index, token_id in enumerate(ids):
            if not _is_id(token_id):
                raise InvalidRequest(
                    f"input_ids[{index}] is {token_id!r:.80}, not a token id", param="input_ids"
                )
    return np.array(ids, dtype=np.int32)


def _is_id(value: object) -> bool:
    """Python's and numpy's integers, but no truth values."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return False
    return _MIN_ID <= value.__index__() <= _MAX_ID


def _resolved(sampling: SamplingParams, vocab_size: int) -> SamplingParams:
    """With a seed, and without stop ids that can never match."""
    known = tuple(i for i in sampling.stop_token_ids if 0 <= i < vocab_size)
    if len(known) < len(sampling.stop_token_ids):
        logger.warning("dropped stop_token_ids outside the vocabulary: they can never match")
    seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
    return msgspec.structs.replace(sampling, stop_token_ids=known, seed=seed)


class Submission:
    """Requests of one id under way: turns their outputs into chunks of text, in any order."""

    def __init__(
        self, requests: Sequence[TokenizedRequest], visible_bytes: Callable[[int], bytes]
    ) -> None:
        self.rid = requests[0].rid
        self._detokenizers = {
            request.choice: IncrementalDetokenizer(
                visible_bytes, request.sampling.stop, request.sampling.stop_regex
            )
            for request in requests
        }

    @property
    def num_open(self) -> int:
        """Choices whose last output has not come yet."""
        return len(self._detokenizers)

    def take(self, output: TokenOutput) -> GenerateChunk:
        """The chunk for one output; raises what an error or an abort means to the client.

        Choices that are open then are of no use any more: their request is to be aborted.
        """
        if output.finish is not None and (failure := failure_of(output.finish)):
            raise failure
        chunk = text_chunk(self._detokenizers[output.choice], output)
        if chunk.finish is not None:
            del self._detokenizers[output.choice]
        return chunk


def text_chunk(detokenizer: IncrementalDetokenizer, output: TokenOutput) -> GenerateChunk:
    """`output` with its text; its choice's `detokenizer` is done after the last one."""
    if output.finish is None:
        text = detokenizer.push(output.ids)
    else:
        text = detokenizer.finish(output.num_text_bytes, output.ids)
    return GenerateChunk(
        choice=output.choice,
        text=text,
        ids=output.ids,
        logprobs=output.logprobs,
        prompt_logprobs=output.prompt_logprobs,
        forced=output.forced,
        finish=output.finish,
        usage=output.usage,
        num_kept_tokens=output.num_kept_tokens,
        times=output.times,
        grammar=output.grammar,
    )


def failure_of(finish: FinishReason) -> EspalierError | None:
    """What to raise for an end that is no result; None for "stop" and "length"."""
    match finish:
        case FinishReason(kind="abort"):
            return RequestAborted(finish.message)
        case FinishReason(kind="error", retry_after_s=float(seconds)):
            return Overloaded(finish.message, seconds)
        case FinishReason(kind="error", bad_request=True):
            return InvalidRequest(finish.message)
        case FinishReason(kind="error"):
            return RequestFailed(finish.message)
        case _:
            return None
