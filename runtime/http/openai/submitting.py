"""Bodies of OpenAI's two routes to calls of the runtime, submitted; knows no answers.

Raises `InvalidRequest`, in the caller's names, for whatever can't be served.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import InvalidRequest
from ...messages import Constraint, LogprobOptions
from ...programs.backend import GenerateCall
from ...scheduler.limits import RequestLimits
from ..arrival import Arrival
from ..namespaces import hints_of, namespace_of
from ..service import Service
from .choices import ChatChoices, ChoiceShape, TextChoices
from .field_names import FieldNames
from .fields import ChatBody, CommonBody, CompletionBody
from .generation import Generation
from .prompts import chat_prompt, check_prompt_len, text_prompts
from .refusals import check_served
from .sampling import check_room, constraint_of, room_for_output, sampling_of
from .usage import UsageTally

_DEFAULT_COMPLETION_LEN = 16
"""What OpenAI's /v1/completions generates at most if it is not told."""


async def submit_chat(service: Service, body: ChatBody, arrival: Arrival) -> Generation:
    """The generation of one chat answer, up to the end of the context if no length is given."""
    check_served(body)
    length_field, length = _chat_length(body)
    constraint, constraint_field = constraint_of(body)
    client = service.client
    asked = _Asked(
        body=body,
        length=length,
        default_len=None,
        logprobs=_chat_logprobs(body),
        constraint=constraint,
        names=_field_names("messages", length_field, "top_logprobs", constraint_field),
        shape=ChatChoices(client.tokenizer, keep_stop=bool(body.no_stop_trim)),
    )
    with asked.names.told("messages"):
        prompt = await chat_prompt(client, body.messages)
    return await asked.submit(service, [prompt], [body.rid], arrival)


async def submit_completion(service: Service, body: CompletionBody, arrival: Arrival) -> Generation:
    """The generation for all prompts, of 16 tokens each, as far as they fit, if not told."""
    check_served(body)
    constraint, constraint_field = constraint_of(body)
    client, num_top = service.client, body.logprobs
    asked = _Asked(
        body=body,
        length=body.max_tokens,
        default_len=_DEFAULT_COMPLETION_LEN,
        logprobs=None if num_top is None else LogprobOptions(output=True, top=num_top),
        constraint=constraint,
        names=_field_names("prompt", "max_tokens", "logprobs", constraint_field),
        shape=TextChoices(
            client.tokenizer, keep_stop=bool(body.no_stop_trim), num_top=num_top or 0
        ),
    )
    with asked.names.told("prompt"):
        prompts = await text_prompts(client, body.prompt, service.config.max_queued_requests)
    return await asked.submit(service, prompts, _rids(body.rid, len(prompts)), arrival)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What a body asks for each of its prompts.

    length: the most tokens to generate, if given; default_len: if not, so many, or all that
    fit for None.
    """

    body: CommonBody
    length: int | None
    default_len: int | None
    logprobs: LogprobOptions | None
    constraint: Constraint | None
    names: FieldNames
    shape: ChoiceShape

    async def submit(
        self,
        service: Service,
        prompts: Sequence[list[int]],
        rids: Sequence[str | None],
        arrival: Arrival,
    ) -> Generation:
        n = 1 if self.body.n is None else self.body.n
        if len(prompts) * n > service.config.max_queued_requests:
            raise InvalidRequest(
                f"{len(prompts)} prompts with n={n} are more than the "
                f"{service.config.max_queued_requests} choices that may be open at one time",
                param="n",
            )
        limits = service.client.limits
        calls = [self._call(prompt, limits) for prompt in prompts]
        with self.names.told(None):
            opened = await service.client.open(calls, rids)
        return Generation(
            outputs=arrival.outputs(service, opened),
            num_prompts=len(prompts),
            n=n,
            model=service.model_name,
            shape=self.shape,
            tally=UsageTally([len(prompt) for prompt in prompts]),
            names=self.names,
        )

    def _call(self, prompt: list[int], limits: RequestLimits) -> GenerateCall:
        check_prompt_len(len(prompt), limits, self.names.prompt)
        body, room = self.body, room_for_output(len(prompt), limits)
        if self.length is not None:
            check_room(len(prompt), self.length, limits, self.names.renamed["max_new_tokens"])
            max_new_tokens = self.length
        else:
            max_new_tokens = room if self.default_len is None else min(self.default_len, room)
        return GenerateCall(
            input_ids=prompt,
            sampling=sampling_of(body, max_new_tokens),
            constraint=self.constraint,
            logprobs=self.logprobs,
            namespace=namespace_of(body.cache_salt, body.extra_key),
            hints=hints_of(body.priority, body.stages_left, body.user, body.lease),
        )


def _field_names(prompt: str, length: str, top_logprobs: str, constraint: str | None) -> FieldNames:
    renamed = {
        "text": prompt,
        "input_ids": prompt,
        "max_new_tokens": length,
        "min_new_tokens": "min_tokens",
        "top_logprobs": top_logprobs,
    }
    if constraint is not None:
        renamed |= {"json_schema": constraint, "structural_tag": constraint}
    return FieldNames(prompt, renamed, constraint)


def _chat_length(body: ChatBody) -> tuple[str, int | None]:
    """The name of the field that bounds the output, and its value."""
    if body.max_completion_tokens is None:
        return "max_tokens", body.max_tokens
    if body.max_tokens not in (None, body.max_completion_tokens):
        raise InvalidRequest(
            f"max_tokens={body.max_tokens} contradicts "
            f"max_completion_tokens={body.max_completion_tokens}",
            param="max_tokens",
        )
    return "max_completion_tokens", body.max_completion_tokens


def _chat_logprobs(body: ChatBody) -> LogprobOptions | None:
    if body.logprobs:
        return LogprobOptions(output=True, top=body.top_logprobs or 0)
    if body.top_logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
    return None


def _rids(rid: str | list[str] | None, num_prompts: int) -> Sequence[str | None]:
    if rid is None:
        return [None] * num_prompts
    rids = [rid] if isinstance(rid, str) else rid
    if len(rids) != num_prompts:
        raise InvalidRequest(
            f"there are {num_prompts} prompts, but {len(rids)} request ids", param="rid"
        )
    return rids
