"""What bench/schemas compares: compilers of a schema to something that accepts or refuses texts.

Each runs in a process of its own (bench/schemas/worker.py), over a vocabulary of the 256 bytes.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

EOS_ID = 256


@dataclass(frozen=True, slots=True)
class Refusal:
    """A schema is not compiled, and why."""

    reason: str


class Matcher(Protocol):
    def accepts(self, text: str) -> bool:
        """Whether the text as a whole is in the language."""
        ...


class Contender(Protocol):
    def compile(self, schema: str) -> Matcher | Refusal: ...


CONTENDERS = {
    "espalier": "bench.schemas.contenders:Espalier",
    "xgrammar": "bench.schemas.contenders:StrictXgrammar",
    "xgrammar-open": "bench.schemas.contenders:OpenXgrammar",
    "llguidance": "bench.schemas.contenders:Llguidance",
}
"""Name -> module:class, as a worker imports it."""


def load(path: str) -> Contender:
    """The contender at `module:class`."""
    module, _, name = path.partition(":")
    return cast("Contender", getattr(importlib.import_module(module), name)())


class _Acceptance(Protocol):
    def __call__(self, schema_text: str, *, open_objects: bool) -> Matcher: ...


class Espalier:
    """Our normaliser and its grammar; objects are as open as the schema leaves them."""

    def __init__(self) -> None:
        from espalier.runtime.errors import InvalidRequest

        module = importlib.import_module("espalier.runtime.grammar.schema")
        self._acceptance = cast("_Acceptance", module.acceptance)
        self._invalid = InvalidRequest

    def compile(self, schema: str) -> Matcher | Refusal:
        try:
            return self._acceptance(schema, open_objects=True)
        except self._invalid as error:
            return Refusal(str(error))


class _Xgrammar:
    def __init__(self, strict_mode: bool) -> None:
        import xgrammar as xgr

        vocabulary = [bytes([value]) for value in range(EOS_ID)] + [b"</s>"]
        info = xgr.TokenizerInfo(vocabulary, vocab_type=xgr.VocabType.RAW, stop_token_ids=[EOS_ID])
        self._compiler = xgr.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._new_matcher = xgr.GrammarMatcher
        self._strict_mode = strict_mode

    def compile(self, schema: str) -> Matcher | Refusal:
        try:
            compiled = self._compiler.compile_json_schema(schema, strict_mode=self._strict_mode)
        except RuntimeError as error:
            return Refusal(str(error))
        return _XgrammarTexts(self._new_matcher(compiled))


class StrictXgrammar(_Xgrammar):
    """As xgrammar is by default."""

    def __init__(self) -> None:
        super().__init__(strict_mode=True)


class OpenXgrammar(_Xgrammar):
    """With objects and arrays as open as the schema leaves them."""

    def __init__(self) -> None:
        super().__init__(strict_mode=False)


class _StringMatcher(Protocol):
    """What is used of `xgrammar.GrammarMatcher`."""

    def accept_string(self, input_str: str | bytes) -> bool: ...
    def is_completed(self) -> bool: ...
    def reset(self) -> None: ...


class _XgrammarTexts:
    def __init__(self, matcher: _StringMatcher) -> None:
        self._matcher = matcher

    def accepts(self, text: str) -> bool:
        self._matcher.reset()
        return self._matcher.accept_string(text) and self._matcher.is_completed()


class Llguidance:
    """With its own converter and its defaults."""

    def __init__(self) -> None:
        import llguidance

        self._matcher = llguidance.LLMatcher
        wrapper = llguidance.TokenizerWrapper(_Bytes())
        self._tokenizer = llguidance.LLTokenizer(wrapper)

    def compile(self, schema: str) -> Matcher | Refusal:
        try:
            grammar = self._matcher.grammar_from_json_schema(schema)
        except ValueError as error:
            return Refusal(str(error))
        matcher = self._matcher(self._tokenizer, grammar, log_level=0)
        return Refusal(matcher.get_error()) if matcher.is_error() else _LlguidanceTexts(matcher)


class _Bytes:
    """A tokenizer in llguidance's sense: each byte is a token."""

    eos_token_id = EOS_ID
    bos_token_id = None
    special_token_ids = (EOS_ID,)
    tokens: Sequence[bytes] = [bytes([value]) for value in range(EOS_ID)] + [b"</s>"]

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


class _TokenMatcher(Protocol):
    """What is used of `llguidance.LLMatcher`."""

    def deep_copy(self) -> _TokenMatcher: ...
    def consume_tokens(self, sampled_tokens: list[int]) -> bool: ...
    def is_accepting(self) -> bool: ...


class _LlguidanceTexts:
    def __init__(self, matcher: _TokenMatcher) -> None:
        self._matcher = matcher

    def accepts(self, text: str) -> bool:
        matcher = self._matcher.deep_copy()
        return matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()
