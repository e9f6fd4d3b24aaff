"""From the body of `/generate` to calls of the runtime; names the caller's field in errors."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, cast

from ..client import OpenCalls, RuntimeClient
from ..errors import InvalidRequest
from ..grammar.checks import param_of
from ..messages import Constraint, LogprobOptions
from ..programs.backend import GenerateCall, TextPiece
from ..sampling.params import MAX_CHOICES, SamplingParams
from ..scheduler.limits import RequestLimits
from ..submission import expand_each
from .namespaces import hints_of, namespace_of
from .native_fields import (
    SAMPLING_NAMES,
    GenerateBody,
    SamplingFields,
    check_served,
    constraint_of,
    sampling_of,
)

T = TypeVar("T")

_LOGPROB_NAMES = {"top_logprobs": "top_logprobs_num", "prompt_start": "logprob_start_len"}


@dataclass(frozen=True, slots=True)
class Ask:
    """One prompt of the body: its call, the caller's id for it, and how it is answered."""

    call: GenerateCall
    rid: str
    no_stop_trim: bool
    text_in_logprobs: bool
    prompt_param: str
    sampling_param: str

    def in_callers_words(self, error: InvalidRequest) -> InvalidRequest:
        """`error`, which is about this call, with the name of the caller's field."""
        ours, message = error.param, str(error)
        constraint = self.call.constraint
        if constraint is not None and ours in (None, param_of(constraint)):
            return InvalidRequest(message, param=f"{self.sampling_param}.{param_of(constraint)}")
        if ours is None:
            return error
        if ours == "input_ids":
            return InvalidRequest(message, param=self.prompt_param)
        name = SAMPLING_NAMES.get(ours) or _LOGPROB_NAMES.get(ours, ours)
        path = f"{self.sampling_param}.{name}" if ours in SAMPLING_NAMES else name
        return InvalidRequest(re.sub(rf"\b{ours}\b", name, message), param=path)


@dataclass(frozen=True, slots=True)
class Batch:
    """All prompts of a body. `is_list`: the answer is a list, and stream events are numbered."""

    asks: Sequence[Ask]
    is_list: bool

    @property
    def first_indices(self) -> list[int]:
        """For each ask, the index of its first choice among all choices."""
        indices = [0]
        for ask in self.asks:
            indices.append(indices[-1] + ask.call.sampling.n)
        return indices[:-1]


async def batch_of(body: GenerateBody, client: RuntimeClient, max_sequences: int) -> Batch:
    """What `body` asks for, its texts tokenised.

    Raises `InvalidRequest` naming the field for what can be told without the runtime.
    """
    check_served(body)
    prompts = _Prompts(body, client, max_sequences)
    options = _Options(body, prompts.count if prompts.is_batch else None)
    asks: list[Ask] = []
    for index in range(prompts.count):
        asks.append(options.ask(index, await prompts.ids(index), prompts.param(index)))
    num_choices = sum(min(max(ask.call.sampling.n, 0), MAX_CHOICES) for ask in asks)
    if num_choices > max_sequences:
        _refuse_count(num_choices, max_sequences, options.sampling_param(0) + ".n")
    is_list = prompts.is_batch or asks[0].call.sampling.n > 1
    return Batch(asks, is_list)


async def open_batch(batch: Batch, client: RuntimeClient) -> OpenCalls:
    """Submit all calls, or none. Raises `InvalidRequest` in the caller's words."""
    calls = [ask.call for ask in batch.asks]
    try:
        return await client.open(calls, [ask.rid for ask in batch.asks])
    except InvalidRequest as error:
        limits = client.limits
        told = await client.run_in_worker(partial(_in_callers_words, error, batch.asks, limits))
        raise told from None


def _in_callers_words(
    error: InvalidRequest, asks: Sequence[Ask], limits: RequestLimits
) -> InvalidRequest:
    """Find the call that `error` is about: checks are deterministic. `error` if it is none."""
    expanded = expand_each([ask.call for ask in asks], limits)
    for ask in asks:
        try:
            next(expanded)
        except InvalidRequest as again:
            return ask.in_callers_words(again)
    return error


class _Prompts:
    """The prompts of a body, one after the other, as token ids within the vocabulary."""

    def __init__(self, body: GenerateBody, client: RuntimeClient, max_sequences: int) -> None:
        self._client = client
        if (body.text is None) == (body.input_ids is None):
            raise InvalidRequest("exactly one of text and input_ids is needed", param="text")
        self._field = "text" if body.input_ids is None else "input_ids"
        given: Sequence[str | int | list[int]] | str | None = (
            body.text if body.input_ids is None else body.input_ids
        )
        assert given is not None
        self.is_batch = not isinstance(given, str) and not _is_flat(given)
        self._prompts = list(given) if self.is_batch else [given]
        self.count = len(self._prompts)
        if self.count == 0:
            raise InvalidRequest(f"{self._field} is an empty list", param=self._field)
        if self.count > max_sequences:
            _refuse_count(self.count, max_sequences, self._field)

    def param(self, index: int) -> str:
        """The prompt's path in the body."""
        return f"{self._field}[{index}]" if self.is_batch else self._field

    async def ids(self, index: int) -> list[int]:
        prompt = self._prompts[index]
        if not isinstance(prompt, str):
            ids = cast("list[int]", prompt)
            _check_ids(ids, self.param(index), self._client.limits)
            return ids
        try:
            ids = await self._client.encode([TextPiece(prompt, control=True)])
        except InvalidRequest as error:
            raise InvalidRequest(str(error), param=self.param(index)) from None
        bos_id = self._client.tokenizer.bos_id
        return ids if bos_id is None else [bos_id, *ids]


def _is_flat(prompt: Sequence[str | int | list[int]]) -> bool:
    """Whether this list is one prompt's ids, rather than many prompts."""
    kinds = set(map(type, prompt))  # of what JSON knows, ids are int alone
    if int not in kinds or len(kinds) == 1:
        return int in kinds
    raise InvalidRequest(
        "input_ids must be a flat list of integers, or a list of such lists, not a mixture",
        param="input_ids",
    )


def _check_ids(ids: Sequence[int], param: str, limits: RequestLimits) -> None:
    """Tell which id is wrong, and do not walk over more ids than can be served."""
    if not ids:
        raise InvalidRequest("the prompt is empty", param=param)
    if len(ids) > limits.context_len:
        raise InvalidRequest(
            f"the prompt of {len(ids)} tokens is longer than the model's context length of "
            f"{limits.context_len}",
            param=param,
        )
    if min(ids) < 0 or max(ids) >= limits.vocab_size:
        at = next(i for i, token_id in enumerate(ids) if not 0 <= token_id < limits.vocab_size)
        raise InvalidRequest(
            f"{param}[{at}] is {ids[at]}, which is out-of-vocabulary: ids are from 0 to "
            f"{limits.vocab_size - 1}",
            param=f"{param}[{at}]",
        )


def _refuse_count(count: int, most: int, param: str) -> None:
    raise InvalidRequest(
        f"the request has {count} sequences, more than the {most} that may be open at one time",
        param=param,
    )


class _Options:
    """What a body says besides prompts, for each of them; `count` is None for a single one."""

    def __init__(self, body: GenerateBody, count: int | None) -> None:
        self._is_batch = count is not None
        self._has_many_samplings = isinstance(body.sampling_params, list)
        num = 1 if count is None else count
        self._samplings = _spread(
            body.sampling_params, SamplingFields(), num, "sampling_params", self._is_batch
        )
        self._return = _spread(body.return_logprob, False, num, "return_logprob", self._is_batch)
        self._starts = _spread(body.logprob_start_len, -1, num, "logprob_start_len", self._is_batch)
        self._tops = _spread(body.top_logprobs_num, 0, num, "top_logprobs_num", self._is_batch)
        self._texts = _spread(
            body.return_text_in_logprobs, False, num, "return_text_in_logprobs", self._is_batch
        )
        self._rids = self._spread_rids(body.rid, num)
        self._namespace = namespace_of(body.cache_salt, body.extra_key)
        self._hints = hints_of(body.priority, body.stages_left, body.tenant, body.lease)
        self._parsed: dict[int, tuple[SamplingParams, Constraint | None]] = {}

    def sampling_param(self, index: int) -> str:
        """The path in the body of the prompt's sampling parameters."""
        return f"sampling_params[{index}]" if self._has_many_samplings else "sampling_params"

    def ask(self, index: int, input_ids: list[int], prompt_param: str) -> Ask:
        fields, where = self._samplings[index], self.sampling_param(index)
        if id(fields) not in self._parsed:  # prompts may share them: then they are parsed once
            self._parsed[id(fields)] = sampling_of(fields, where), constraint_of(fields, where)
        sampling, constraint = self._parsed[id(fields)]
        call = GenerateCall(
            input_ids=input_ids,
            sampling=sampling,
            constraint=constraint,
            logprobs=self._logprobs(index),
            namespace=self._namespace,
            hints=self._hints,
        )
        return Ask(
            call=call,
            rid=self._rids[index],
            no_stop_trim=bool(fields.no_stop_trim),
            text_in_logprobs=self._texts[index],
            prompt_param=prompt_param,
            sampling_param=where,
        )

    def _logprobs(self, index: int) -> LogprobOptions | None:
        if not self._return[index]:
            return None
        start = self._starts[index]
        return LogprobOptions(prompt_start=None if start == -1 else start, top=self._tops[index])

    def _spread_rids(self, rid: str | list[str] | None, count: int) -> Sequence[str]:
        """Every prompt has an id by which it can be aborted."""
        if rid is None:
            return [uuid.uuid4().hex for _ in range(count)]
        if isinstance(rid, str) and self._is_batch:
            raise InvalidRequest("rid must be a list for a list of prompts", param="rid")
        return _spread(rid, "", count, "rid", self._is_batch)


def _spread(
    value: T | list[T] | None, default: T, count: int, param: str, is_batch: bool
) -> Sequence[T]:
    """One value for each of `count` prompts."""
    if not isinstance(value, list):
        return [default if value is None else value] * count
    values = cast("list[T]", value)
    if not is_batch:
        raise InvalidRequest(f"{param} is a list, but there is a single prompt", param=param)
    if len(values) != count:
        raise InvalidRequest(f"{param} has {len(values)} entries for {count} prompts", param=param)
    return values
