"""What a body asks of sampling, constraints and lengths, in the runtime's terms."""

from __future__ import annotations

import msgspec

from ...errors import InvalidRequest
from ...messages import Choice, Constraint, Ebnf, JsonSchema, Lark, Regex, StructuralTag
from ...sampling.params import SamplingParams
from ...scheduler.limits import RequestLimits
from .fields import CommonBody, ResponseFormat

_ANY_OBJECT = JsonSchema('{"type":"object"}')


def sampling_of(body: CommonBody, max_new_tokens: int) -> SamplingParams:
    """What `body` asks for; what it leaves out has the runtime's default, which is OpenAI's."""
    asked = {
        "min_new_tokens": body.min_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "min_p": body.min_p,
        "frequency_penalty": body.frequency_penalty,
        "presence_penalty": body.presence_penalty,
        "repetition_penalty": body.repetition_penalty,
        "logit_bias": body.logit_bias,
        "seed": body.seed,
        "stop": _texts(body.stop),
        "stop_regex": _texts(body.stop_regex),
        "stop_token_ids": None if body.stop_token_ids is None else tuple(body.stop_token_ids),
        "ignore_eos": body.ignore_eos,
        "n": body.n,
    }
    given = {name: value for name, value in asked.items() if value is not None}
    return msgspec.structs.replace(SamplingParams(max_new_tokens=max_new_tokens), **given)


def _texts(given: str | list[str] | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    return (given,) if isinstance(given, str) else tuple(given)


def constraint_of(body: CommonBody) -> tuple[Constraint | None, str | None]:
    """The constraint and the field that asks for it. Raises `InvalidRequest` for two."""
    asked: dict[str, Constraint] = {}
    if (shape := _format_constraint(body.response_format)) is not None:
        asked["response_format"] = shape
    if (schema := _json_text(body.json_schema, "json_schema")) != "null":
        asked["json_schema"] = JsonSchema(_unquoted(schema))
    if body.regex is not None:
        asked["regex"] = Regex(body.regex)
    if body.ebnf is not None:
        asked["ebnf"] = Ebnf(body.ebnf)
    if body.lark is not None:
        asked["lark"] = Lark(body.lark)
    if body.choices is not None:
        asked["choices"] = Choice(tuple(body.choices))
    if len(asked) > 1:
        first, second, *_ = asked
        raise InvalidRequest(f"{first} and {second} exclude each other", param=second)
    return next(((c, field) for field, c in asked.items()), (None, None))


def _format_constraint(shape: ResponseFormat | None) -> Constraint | None:
    match shape:
        case None | ResponseFormat(type="text"):
            return None
        case ResponseFormat(type="json_object"):
            return _ANY_OBJECT
        case ResponseFormat(type="json_schema", json_schema=named) if named is not None:
            return JsonSchema(
                _json_text(named.schema, "response_format"),
                bool(named.open_objects),
                named.unenforced or "refuse",
            )
        case ResponseFormat(type="json_schema"):
            raise InvalidRequest("response_format has no json_schema", param="response_format")
        case ResponseFormat(type="structural_tag"):
            nodes = _json_text(shape.format, "response_format")
            return StructuralTag(f'{{"type":"structural_tag","format":{nodes}}}')
        case _:
            raise InvalidRequest(
                f"type {shape.type!r:.80} is not supported: it is text, json_object, json_schema "
                "or structural_tag",
                param="response_format.type",
            )


def _json_text(raw: msgspec.Raw, param: str) -> str:
    try:
        return bytes(raw).decode()
    except UnicodeDecodeError:  # raw values are not decoded with the body
        raise InvalidRequest(f"{param} is not valid UTF-8", param=param) from None


def _unquoted(text: str) -> str:
    """A schema's text where it came as a JSON string, as SGLang's clients send it."""
    return msgspec.json.decode(text, type=str) if text.startswith('"') else text


def room_for_output(prompt_len: int, limits: RequestLimits) -> int:
    """How many tokens fit behind the prompt, none if it does not fit itself."""
    # The last token is never computed, so it needs no slot in the pool.
    fitting = min(limits.context_len - prompt_len, limits.pool_tokens - prompt_len + 1)
    return max(0, fitting)


def check_room(prompt_len: int, asked: int, limits: RequestLimits, param: str) -> None:
    """Raise `InvalidRequest` in OpenAI's words if `asked` tokens do not fit behind the prompt."""
    room = room_for_output(prompt_len, limits)
    if asked > room:
        raise InvalidRequest(
            f"{param} is too large: {asked}. After {prompt_len} prompt tokens there is room for "
            f"{room}: the context length is {limits.context_len} tokens, the KV pool has "
            f"{limits.pool_tokens}",
            param=param,
        )
