"""A constraint made into an artefact: a grammar of ours, given to the engine that enforces it."""

from __future__ import annotations

from time import thread_time

import msgspec

from ..errors import InvalidRequest
from ..ipc.compiling import Artefact
from ..messages import (
    Choice,
    Constraint,
    Ebnf,
    JsonSchema,
    Lark,
    Regex,
    StructuralTag,
)
from .checks import check_constraint, param_of
from .closing import Closer
from .derive import Derived, derived
from .engines import Engines
from .regular import TooLarge
from .routing import notations
from .structural_tags import StructuralTagText
from .wire import encode_grammar

MAX_PAYLOAD_BYTES = 32 << 20
MAX_AGAIN_S = 1.0
MAX_AGAIN_BYTES = 64 << 20
"""Of what the scheduler's process compiles a second time."""
MAX_MIN_TOKENS = 100_000


def compile_constraint(constraint: Constraint, engines: Engines) -> Artefact:
    """May take any time and any memory, and may not come back: to be called in a worker.

    `InvalidRequest` with the words of the check, of our own reading or of the engine.
    """
    check_constraint(constraint)
    param = param_of(constraint)
    match constraint:
        case Ebnf(grammar):
            return _xgrammar_artefact(grammar, engines, is_json=False, param=param)
        case Lark(grammar):
            engines.llguidance.compile(grammar, is_json=False, param=param)
            return Artefact("llguidance", grammar.encode(), is_json=False)
        case StructuralTag(structure):
            return _tag_artefact(engines.prepared_tag(structure), engines, param)
        case _:
            return _closable(constraint, engines, param)


def _tag_artefact(tag: StructuralTagText, engines: Engines, param: str) -> Artefact:
    compiled = engines.xgrammar.compile_tag(tag.text, named_ids=tag.token_ids, param=param)
    return Artefact(
        "xgrammar",
        _checked(compiled.serialize(), param),
        is_json=False,
        is_serialized=True,
        notes=tag.notes,
        named_ids=tag.token_ids,
    )


def _closable(constraint: JsonSchema | Regex | Choice, engines: Engines, param: str) -> Artefact:
    """What becomes a grammar of ours, which never ends incomplete."""
    found = derived(constraint)
    is_json = isinstance(constraint, JsonSchema)
    built = _built(found, engines, is_json=is_json, param=param)
    try:
        closer = Closer(found.grammar, engines.closing)
    except TooLarge as error:
        message = f"{param}: it has no text that is short enough: {error}"
        raise InvalidRequest(message, param=param) from None
    if closer.min_tokens > MAX_MIN_TOKENS:
        raise InvalidRequest(
            f"{param}: the shortest output that is known to satisfy it has {closer.min_tokens} "
            f"tokens, {MAX_MIN_TOKENS} are allowed",
            param=param,
        )
    return msgspec.structs.replace(
        built,
        has_free_keys=found.has_free_keys,
        notes=found.notes,
        is_whole=found.is_whole,
        min_tokens=closer.min_tokens,
        growth=closer.growth,
        closing=encode_grammar(found.grammar),
    )


def _built(found: Derived, engines: Engines, *, is_json: bool, param: str) -> Artefact:
    """By the first engine that takes it; the words of the last one that does not."""
    error = InvalidRequest(f"{param}: no engine can read it", param=param)
    for engine, text in notations(found.grammar):
        try:
            if engine == "xgrammar":
                return _xgrammar_artefact(text, engines, is_json=is_json, param=param)
            engines.llguidance.compile(text, is_json=is_json, param=param)
            return Artefact(engine, text.encode(), is_json=is_json)
        except InvalidRequest as refusal:
            error = refusal
    raise error


def _xgrammar_artefact(text: str, engines: Engines, *, is_json: bool, param: str) -> Artefact:
    """The text itself, if compiling it once more takes little: what has been compiled may be many
    times as large, and take longer to write and to read than to compile."""
    start = thread_time()
    compiled = engines.xgrammar.compile(text, is_json=is_json, param=param)
    if thread_time() - start <= MAX_AGAIN_S and compiled.num_bytes <= MAX_AGAIN_BYTES:
        return Artefact("xgrammar", text.encode(), is_json=is_json)
    payload = _checked(compiled.serialize(), param)
    return Artefact("xgrammar", payload, is_json=is_json, is_serialized=True)


def _checked(payload: bytes, param: str) -> bytes:
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise InvalidRequest(
            f"{param}: the compiled grammar has {len(payload) >> 20} MiB, "
            f"{MAX_PAYLOAD_BYTES >> 20} are allowed",
            param=param,
        )
    return payload
