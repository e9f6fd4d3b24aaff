"""The one seam to xgrammar: compiles constraints, matches tokens, fills bitmasks.

Control tokens are ordinary text to xgrammar, so a mask of the vocabulary goes on top of
every mask of a grammar. Knows no requests and no threads.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import numpy as np
import xgrammar as xgr

from ..errors import InvalidRequest
from ..messages import Choice, Constraint, Ebnf, JsonSchema, Regex
from .checks import param_of
from .regex_dialect import translate_regex
from .token_masks import Bitmask, TokenMasks, has_bit, text_masks

# "[12:34:56] /path/file.cc:12: " in front of the compiler's words.
_LOG_PREFIX = re.compile(r"\[\d\d:\d\d:\d\d\] \S+?:\d+: ")


class Matcher:
    """Where one request stands in its grammar. Not thread-safe."""

    def __init__(self, matcher: xgr.GrammarMatcher, masks: TokenMasks) -> None:
        self._matcher = matcher
        self._masks = masks
        self._last_id: int | None = None

    @property
    def is_completed(self) -> bool:
        """The text so far is whole: a stop token would be accepted now, or was."""
        return self._matcher.is_completed()

    @property
    def is_terminated(self) -> bool:
        """A stop token was accepted: nothing can follow."""
        return self._matcher.is_terminated()

    def accept(self, token_id: int) -> bool:
        """Advance by one token; False, and no change, where the grammar forbids it."""
        if self.is_terminated or not has_bit(self._masks.after(self._last_id), token_id):
            return False
        if not self._matcher.accept_token(token_id):
            return False
        self._last_id = token_id
        return True

    def fill(self, row: Bitmask) -> bool:
        """Set the bits of the tokens that `accept` would take, clear all others.

        `row` has ceil(vocab_width / 32) words. False if no token at all is allowed. Must not
        be called on a terminated matcher.
        """
        assert not self.is_terminated, "a terminated matcher allows no token"
        self._matcher.fill_next_token_bitmask(row[None])
        np.bitwise_and(row, self._masks.after(self._last_id), out=row)
        return bool(row.any())


class CompiledGrammar:
    """One compiled constraint, shared by all requests that use it."""

    def __init__(self, compiled: xgr.CompiledGrammar, masks: TokenMasks) -> None:
        self._compiled = compiled
        self._masks = masks

    @property
    def num_bytes(self) -> int:
        return self._compiled.memory_size_bytes

    def matcher(self) -> Matcher:
        """A new matcher at the start of the grammar."""
        return Matcher(xgr.GrammarMatcher(self._compiled), self._masks)


class XgrammarCompiler:
    """Compiles constraints for one vocabulary. Thread-safe; keeps no results.

    Token i is the bytes `token_bytes[i]`; ids from there to `vocab_width` (the width of the
    model's logits) are never allowed, and of `control_ids` only the stop tokens.
    """

    def __init__(
        self,
        token_bytes: Sequence[bytes],
        *,
        control_ids: Collection[int],
        stop_ids: Collection[int],
        vocab_width: int,
    ) -> None:
        info = xgr.TokenizerInfo(
            list(token_bytes),
            vocab_type=xgr.VocabType.RAW,
            vocab_size=vocab_width,
            stop_token_ids=sorted(stop_ids),
        )
        self._compiler = xgr.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._num_words = (vocab_width + 31) // 32
        self._text_masks, self._json_masks = (
            text_masks(
                token_bytes,
                control_ids=control_ids,
                stop_ids=stop_ids,
                vocab_width=vocab_width,
                is_json=is_json,
            )
            for is_json in (False, True)
        )

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        """`InvalidRequest` with the compiler's words if xgrammar refuses the constraint."""
        param = param_of(constraint)
        try:
            compiled = self._compile(constraint)
        except RuntimeError as error:
            words = _LOG_PREFIX.sub("", str(error)).strip() or "the compiler refuses it"
            raise InvalidRequest(f"{param}: {words}", param=param) from error
        masks = self._json_masks if isinstance(constraint, JsonSchema) else self._text_masks
        grammar = CompiledGrammar(compiled, masks)
        if not grammar.matcher().fill(np.zeros(self._num_words, dtype=np.int32)):
            raise InvalidRequest(f"{param}: no text at all matches", param=param)
        return grammar

    def _compile(self, constraint: Constraint) -> xgr.CompiledGrammar:
        match constraint:
            case JsonSchema(schema):
                return self._compiler.compile_json_schema(
                    schema, any_whitespace=False, separators=(",", ":"), strict_mode=True
                )
            case Regex(pattern):
                xgr.Grammar.from_regex(pattern)  # errors count positions in the caller's text
                return self._compiler.compile_regex(translate_regex(pattern))
            case Ebnf(grammar):
                return self._compiler.compile_grammar(grammar, root_rule_name="root")
            case Choice(choices):
                return self._compiler.compile_grammar(choice_grammar(choices))


def choice_grammar(choices: Sequence[str]) -> str:
    """EBNF whose root is one of `choices`, each character of them taken literally."""
    literals = ('"' + "".join(map(_literal, text)) + '"' for text in dict.fromkeys(choices))
    return "root ::= " + " | ".join(literals)


def _literal(char: str) -> str:
    return char if char.isascii() and (char.isalnum() or char == " ") else f"\\U{ord(char):08x}"
