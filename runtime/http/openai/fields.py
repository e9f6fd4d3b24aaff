"""The bodies of OpenAI's requests: names and types of fields, nothing of what they mean here.

`None` (JSON null) is "not given" everywhere. Fields typed `object` are known but not served;
`refusals` says which of their values change nothing. Fields listed as ignored change no output.
"""

from __future__ import annotations

import msgspec

from ...messages import Unenforced


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Usage in a stream: once at its end, or with every event."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None  # ignored: padding against eavesdroppers


class NamedSchema(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`schema` is kept as JSON text. `strict` false is served as true. The last two are ours."""

    schema: msgspec.Raw
    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    open_objects: bool | None = None
    unenforced: Unenforced | None = None


class ResponseFormat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`type` is text, json_object, json_schema, or structural_tag, which has a `format`."""

    type: str
    json_schema: NamedSchema | None = None
    format: msgspec.Raw = msgspec.Raw(b"null")


class CommonBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What chat and plain completions have in common."""

    model: str = "default"
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None

    # Beyond OpenAI's.
    top_k: int | None = None
    min_p: float | None = None
    min_tokens: int | None = None
    repetition_penalty: float | None = None
    regex: str | None = None
    ebnf: str | None = None
    lark: str | None = None
    json_schema: msgspec.Raw = msgspec.Raw(b"null")
    choices: list[str] | None = None
    stop_regex: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    no_stop_trim: bool | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    priority: int | None = None
    stages_left: int | None = None
    lease: float | None = None
    user: str | None = None  # the tenant that is charged, if shares are fair

    # Known, not served.
    skip_special_tokens: bool | None = None
    best_of: int | None = None
    lora_path: object = None
    custom_logit_processor: object = None
    session_params: object = None

    # Ignored.
    spaces_between_special_tokens: bool | None = None
    metadata: dict[str, object] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    parallel_tool_calls: bool | None = None


class CompletionBody(CommonBody, frozen=True, kw_only=True):
    """POST /v1/completions. Of `prompt`, all items are of one kind."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    rid: str | list[str] | None = None

    echo: bool | None = None
    suffix: object = None


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One message. Text parts of `content` are joined."""

    role: str
    content: str | list[dict[str, object]] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    tool_calls: object = None
    function_call: object = None
    audio: object = None
    refusal: object = None

    annotations: object = None  # ignored


class ChatBody(CommonBody, frozen=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    rid: str | None = None

    tools: object = None
    tool_choice: object = None
    functions: object = None
    function_call: object = None
    audio: object = None
    modalities: object = None
    prediction: object = None
    reasoning_effort: object = None
    verbosity: object = None
    web_search_options: object = None
    chat_template_kwargs: object = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
