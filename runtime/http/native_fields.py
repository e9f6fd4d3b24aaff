"""The body of `/generate`: SGLang's field names and types, and nothing of what they mean.

`None` (JSON null) is "not given" everywhere. Fields typed `object` are known and not served.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ..errors import InvalidRequest
from ..messages import (
    Choice,
    Constraint,
    Ebnf,
    JsonSchema,
    Lark,
    Regex,
    StructuralTag,
    Unenforced,
)
from ..sampling.params import SamplingParams
from .unserved import refuse_unserved


class SamplingFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`sampling_params`. `choices` is ours: the output is one of these strings; so are
    `open_objects` and `unenforced`, which are about `json_schema`."""

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    sampling_seed: int | None = None
    stop: str | list[str] | None = None
    stop_regex: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    json_schema: msgspec.Raw = msgspec.Raw(b"null")
    open_objects: bool | None = None
    unenforced: Unenforced | None = None
    regex: str | None = None
    ebnf: str | None = None
    lark: str | None = None
    structural_tag: msgspec.Raw = msgspec.Raw(b"null")
    choices: list[str] | None = None
    no_stop_trim: bool | None = None

    # Changes no output: the text of control tokens is never part of it.
    spaces_between_special_tokens: bool | None = None

    # Known, not served.
    skip_special_tokens: bool | None = None
    beam_width: object = None
    stream_interval: object = None
    custom_params: object = None
    watermark: object = None


class GenerateBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One prompt or a batch of them: `text` or `input_ids`, each one or a list.

    Control tokens that `text` spells are recognised, and the model's BOS is put in front of
    it, since the caller writes the whole prompt himself; for `input_ids` nothing is added.
    In a batch, what has a list has one value for each prompt. `incremental_streaming_output`
    makes the events of a stream carry what is new instead of all so far. `cache_salt` and
    `extra_key` keep cached tokens apart. `priority`, `stages_left` and `tenant` are for the
    scheduling policies that go by them; `lease` is for how many seconds after its end what
    was computed stays cached.
    """

    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    sampling_params: SamplingFields | list[SamplingFields] | None = None
    rid: str | list[str] | None = None
    return_logprob: bool | list[bool] | None = None
    logprob_start_len: int | list[int] | None = None
    top_logprobs_num: int | list[int] | None = None
    return_text_in_logprobs: bool | list[bool] | None = None
    stream: bool | None = None
    incremental_streaming_output: bool | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    priority: int | None = None
    stages_left: int | None = None
    tenant: str | None = None
    lease: float | None = None

    # Of what is logged and traced: changes no output.
    log_metrics: object = None
    no_logs: object = None
    custom_labels: object = None

    # Known, not served.
    input_embeds: object = None
    image_data: object = None
    video_data: object = None
    audio_data: object = None
    modalities: object = None
    mm_hashes: object = None
    token_ids_logprob: object = None
    return_hidden_states: object = None
    return_routed_experts: object = None
    return_sampling_mask: object = None
    session_id: object = None
    session_params: object = None
    lora_path: object = None
    custom_logit_processor: object = None
    require_reasoning: object = None
    max_thinking_tokens: object = None
    background: object = None
    routing_key: object = None
    conversation_id: object = None
    routed_dp_rank: object = None
    bootstrap_host: object = None
    bootstrap_port: object = None
    bootstrap_room: object = None
    watermark: object = None


_UNSERVED: Mapping[str, Sequence[object]] = {
    "input_embeds": (),
    "image_data": (),
    "video_data": (),
    "audio_data": (),
    "modalities": (["text"],),
    "mm_hashes": (),
    "token_ids_logprob": (),
    "return_hidden_states": (False,),
    "return_routed_experts": (False,),
    "return_sampling_mask": (False,),
    "session_id": (),
    "session_params": (),
    "lora_path": (),
    "custom_logit_processor": (),
    "require_reasoning": (False,),
    "max_thinking_tokens": (),
    "background": (False,),
    "routing_key": (),
    "conversation_id": (),
    "routed_dp_rank": (),
    "bootstrap_host": (),
    "bootstrap_port": (),
    "bootstrap_room": (),
    "watermark": (),
}
_UNSERVED_SAMPLING: Mapping[str, Sequence[object]] = {
    "skip_special_tokens": (True,),
    "beam_width": (1,),
    "stream_interval": (1,),
    "custom_params": ({},),
    "watermark": (),
}
_RENAMED = {"sampling_seed": "seed"}
_SAME = (
    "max_new_tokens",
    "min_new_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "logit_bias",
    "stop",
    "stop_regex",
    "stop_token_ids",
    "ignore_eos",
    "n",
)

SAMPLING_NAMES: Mapping[str, str] = {
    **{name: name for name in _SAME},
    **{ours: callers for callers, ours in _RENAMED.items()},
}
"""What the runtime calls a sampling parameter: what `sampling_params` calls it."""


def check_served(body: GenerateBody) -> None:
    """Raise `InvalidRequest` naming the first field that asks for what is not served."""
    refuse_unserved(body, _UNSERVED)


def sampling_of(fields: SamplingFields, where: str) -> SamplingParams:
    """The runtime's form of `fields`, unchecked; `where` is their path in the body."""
    refuse_unserved(fields, _UNSERVED_SAMPLING, f"{where}.")
    given: dict[str, object] = {}
    for ours, callers in SAMPLING_NAMES.items():
        value: object = getattr(fields, callers)
        if value is not None:
            given[ours] = value
    for name, stops in (("stop", fields.stop), ("stop_regex", fields.stop_regex)):
        if stops is not None:
            given[name] = (stops,) if isinstance(stops, str) else tuple(stops)
    if fields.stop_token_ids is not None:
        given["stop_token_ids"] = tuple(fields.stop_token_ids)
    return msgspec.structs.replace(SamplingParams(), **given)


def constraint_of(fields: SamplingFields, where: str) -> Constraint | None:
    """The one constraint that `fields` has, if any; unchecked but for being only one."""
    asked: dict[str, Constraint] = {}
    schema = _json_text(fields.json_schema, f"{where}.json_schema")
    if schema is not None:
        asked["json_schema"] = JsonSchema(
            schema, bool(fields.open_objects), fields.unenforced or "refuse"
        )
    else:
        _refuse_without_schema(fields, where)
    if fields.regex is not None:
        asked["regex"] = Regex(fields.regex)
    if fields.ebnf is not None:
        asked["ebnf"] = Ebnf(fields.ebnf)
    if fields.lark is not None:
        asked["lark"] = Lark(fields.lark)
    structure = _json_text(fields.structural_tag, f"{where}.structural_tag")
    if structure is not None:
        asked["structural_tag"] = StructuralTag(structure)
    if fields.choices is not None:
        asked["choices"] = Choice(tuple(fields.choices))
    if len(asked) > 1:
        first, second, *_ = asked
        raise InvalidRequest(f"{first} and {second} exclude each other", param=f"{where}.{second}")
    return next(iter(asked.values()), None)


def _refuse_without_schema(fields: SamplingFields, where: str) -> None:
    for name in ("open_objects", "unenforced"):
        if getattr(fields, name) is not None:
            raise InvalidRequest(f"{name} needs json_schema", param=f"{where}.{name}")


def _json_text(raw: msgspec.Raw, param: str) -> str | None:
    """The text of an object that came as it is, or as a string with its text."""
    data = bytes(raw)
    try:
        if data.startswith(b"{"):
            return data.decode()
        return msgspec.json.decode(data, type=str | None)
    except (UnicodeDecodeError, msgspec.DecodeError):
        message = f"{param} must be a JSON object, or a string with its text"
        raise InvalidRequest(message, param=param) from None
