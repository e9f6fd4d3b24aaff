"""Grammar engines over a vocabulary of single bytes: which texts do they accept?"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import llguidance
import xgrammar

NUM_TOKENS = 257  # the bytes, then the end of the text
_EOS = 256


class _Bytes:
    """What llguidance asks of a tokenizer."""

    eos_token_id = _EOS
    bos_token_id = None
    special_token_ids = (_EOS,)
    tokens = tuple(bytes([value]) for value in range(256)) + (b"<end>",)

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@cache
def _tokenizer() -> Any:
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()))


def lark_acceptance(grammar: str) -> Callable[[str], bool]:
    """Whether llguidance accepts a whole text; AssertionError if it refuses the grammar."""

    def accepts(text: str) -> bool:
        matcher = llguidance.LLMatcher(_tokenizer(), grammar)
        assert not matcher.is_error(), (matcher.get_error(), grammar)
        for byte in text.encode():
            if not matcher.try_consume_tokens([byte]):
                return False
        return bool(matcher.is_accepting())

    return accepts


@cache
def _compiler() -> xgrammar.GrammarCompiler:
    vocabulary = [bytes([value]) for value in range(256)] + [b""]
    info = xgrammar.TokenizerInfo(
        vocabulary, vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[_EOS]
    )
    return xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)


def ebnf_acceptance(grammar: str) -> Callable[[str], bool]:
    """Whether xgrammar accepts a whole text."""
    compiled = _compiler().compile_grammar(grammar)

    def accepts(text: str) -> bool:
        matcher = xgrammar.GrammarMatcher(compiled)
        return all(matcher.accept_token(byte) for byte in text.encode()) and (
            matcher.is_completed()
        )

    return accepts
