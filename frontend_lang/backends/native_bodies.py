"""Bodies of the server's native API, out of what programs ask; knows no transport."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from espalier.runtime.errors import InvalidRequest
from espalier.runtime.messages import (
    Choice,
    Constraint,
    Ebnf,
    JsonSchema,
    Lark,
    LogprobOptions,
    Regex,
    StructuralTag,
)
from espalier.runtime.programs.backend import GenerateCall, TextPiece
from espalier.runtime.sampling.params import SamplingParams
from espalier.runtime.submission import token_ids

_ANY_VOCABULARY = 2**31  # the server checks token ids against its own


def generate_body(call: GenerateCall) -> bytes:
    """The body of `/generate` that streams `call`.

    Raises `InvalidRequest` for what could not be told apart any more, or not be sent at all,
    once it is JSON.
    """
    call.sampling.validate(_ANY_VOCABULARY)
    body: dict[str, object] = {
        "input_ids": token_ids(call.input_ids).tolist(),
        "sampling_params": {**_sampling(call.sampling), **_constraint(call.constraint)},
        "stream": True,
        "incremental_streaming_output": True,
        **_logprobs(call.logprobs),
    }
    if call.namespace:
        body["extra_key"] = msgspec.json.encode(call.namespace).decode()
    return _encoded(body)


def score_body(prefix: Sequence[int], continuations: Sequence[Sequence[int]]) -> bytes:
    """The body of `/generate` that scores each of `continuations` after `prefix`."""
    if not continuations:
        raise InvalidRequest("there is nothing to score", param="continuations")
    return _encoded(
        {
            "input_ids": [token_ids([*prefix, *ids]).tolist() for ids in continuations],
            "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
            "return_logprob": True,
            "logprob_start_len": [len(prefix)] * len(continuations),
            "stream": False,
        }
    )


def tokenize_body(pieces: Sequence[TextPiece]) -> bytes:
    return _encoded({"pieces": [{"text": p.text, "control": p.control} for p in pieces]})


def role_markers_body(roles: Sequence[str]) -> bytes:
    return _encoded({"roles": list(roles)})


def _sampling(sampling: SamplingParams) -> dict[str, object]:
    fields: dict[str, object] = msgspec.structs.asdict(sampling)
    seed = fields.pop("seed")
    return fields if seed is None else {**fields, "sampling_seed": seed}


def _constraint(constraint: Constraint | None) -> dict[str, object]:
    match constraint:
        case None:
            return {}
        case JsonSchema():
            return _schema(constraint)
        case Regex(pattern):
            return {"regex": pattern}
        case Ebnf(grammar):
            return {"ebnf": grammar}
        case Lark(grammar):
            return {"lark": grammar}
        case StructuralTag(structure):
            return {"structural_tag": structure}
        case Choice(choices):
            return {"choices": choices}


def _schema(constraint: JsonSchema) -> dict[str, object]:
    asked: dict[str, object] = {"json_schema": constraint.schema}
    if constraint.open_objects:
        asked["open_objects"] = True
    if constraint.unenforced != "refuse":
        asked["unenforced"] = constraint.unenforced
    return asked


def _logprobs(options: LogprobOptions | None) -> dict[str, object]:
    if options is None:
        return {"return_logprob": False}
    return {
        "return_logprob": True,
        "logprob_start_len": -1 if options.prompt_start is None else options.prompt_start,
        "top_logprobs_num": options.top,
    }


def _encoded(body: Mapping[str, object]) -> bytes:
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"the text has a lone surrogate: {error}") from None
