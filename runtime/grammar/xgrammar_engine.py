"""The one seam to xgrammar: compiles constraints, matches tokens, fills bitmasks.

To xgrammar control tokens are ordinary text; it is given text for them that no character has,
and a mask of the vocabulary goes on top of every mask of a grammar: free text of a structural
tag is any bytes. Knows no requests and no threads.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager

import numpy as np
import xgrammar as xgr

from ..errors import InvalidRequest
from .token_masks import Bitmask, TokenMasks, has_bit, text_masks

# "[12:34:56] /path/file.cc:12: " in front of the compiler's words.
_NO_CHARACTER = b"\xff"  # in no UTF-8
_LOG_PREFIX = re.compile(r"\[\d\d:\d\d:\d\d\] \S+?:\d+: ")


class XgrammarMatcher:
    """See `engine.Matcher`."""

    def __init__(
        self, matcher: xgr.GrammarMatcher, masks: TokenMasks, last_id: int | None = None
    ) -> None:
        self._matcher = matcher
        self._masks = masks
        self._last_id = last_id

    @property
    def is_completed(self) -> bool:
        return self._matcher.is_completed()

    @property
    def is_terminated(self) -> bool:
        return self._matcher.is_terminated()

    def accept(self, token_id: int) -> bool:
        if self.is_terminated or not has_bit(self._masks.after(self._last_id), token_id):
            return False
        if not self._matcher.accept_token(token_id):
            return False
        self._last_id = token_id
        return True

    def fill(self, row: Bitmask) -> bool:
        assert not self.is_terminated, "a terminated matcher allows no token"
        self._matcher.fill_next_token_bitmask(row[None])
        self._finish(row)
        return bool(row.any())

    @staticmethod
    def fill_all(matchers: Sequence[tuple[int, XgrammarMatcher]], rows: Bitmask) -> None:
        """Each into its row of `rows`, as `fill` does, in one call to xgrammar."""
        inner: list[xgr.GrammarMatcher] = []
        for _, matcher in matchers:
            assert not matcher.is_terminated, "a terminated matcher allows no token"
            inner.append(matcher._matcher)
        batch = xgr.BatchGrammarMatcher(max_threads=1)
        batch.batch_fill_next_token_bitmask(inner, rows, [index for index, _ in matchers])
        for index, matcher in matchers:
            matcher._finish(rows[index])

    def _finish(self, row: Bitmask) -> None:
        """xgrammar has filled it."""
        np.bitwise_and(row, self._masks.after(self._last_id), out=row)

    def forced(self) -> bytes:
        return b"" if self.is_terminated else self._matcher.find_jump_forward_string().encode()

    def fork(self) -> XgrammarMatcher:
        return XgrammarMatcher(self._matcher.fork(), self._masks, self._last_id)


class XgrammarGrammar:
    """See `engine.EngineGrammar`."""

    def __init__(
        self, compiled: xgr.CompiledGrammar, masks: TokenMasks, unshared_bytes: int = 0
    ) -> None:
        """unshared_bytes: what it takes beyond what xgrammar says."""
        self._compiled = compiled
        self._masks = masks
        self._unshared_bytes = unshared_bytes

    @property
    def num_bytes(self) -> int:
        return self._compiled.memory_size_bytes + self._unshared_bytes

    def matcher(self) -> XgrammarMatcher:
        return XgrammarMatcher(xgr.GrammarMatcher(self._compiled), self._masks)

    def serialize(self) -> bytes:
        """For `XgrammarCompiler.load`, in another process, over the same vocabulary.

        One automaton, which all rules share, is written once for each rule, and stays so where it
        is loaded: many rules take longer to load than to compile, and a hundred times the memory.
        """
        with _memory_errors():
            return self._compiled.serialize_json().encode()


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
        hidden = set(control_ids)
        self._info = xgr.TokenizerInfo(
            [_NO_CHARACTER + t if i in hidden else t for i, t in enumerate(token_bytes)],
            vocab_type=xgr.VocabType.RAW,
            vocab_size=vocab_width,
            stop_token_ids=sorted(stop_ids),
        )
        self._compiler = xgr.GrammarCompiler(self._info, max_threads=1, cache_enabled=False)
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

    def compile(self, ebnf: str, *, is_json: bool, param: str) -> XgrammarGrammar:
        """The grammar whose root is the rule `root` of `ebnf`.

        `InvalidRequest`, naming `param`, with xgrammar's words if it refuses the text;
        `MemoryError`.
        """
        with _refusals(param), _memory_errors():
            compiled = self._compiler.compile_grammar(ebnf, root_rule_name="root")
        return self._checked(self._grammar(compiled, is_json=is_json), param)

    def compile_tag(
        self, structure: str, *, named_ids: Sequence[int], param: str
    ) -> XgrammarGrammar:
        """The grammar of a structural tag, in which the control tokens `named_ids` may come."""
        with _refusals(param), _memory_errors():
            compiled = self._compiler.compile_structural_tag(structure)
        return self._checked(self._grammar(compiled, is_json=False, named_ids=named_ids), param)

    def load(
        self, payload: bytes, *, is_json: bool, named_ids: Sequence[int] = ()
    ) -> XgrammarGrammar:
        """A grammar that was compiled elsewhere. Drops the GIL for most of its time."""
        compiled = xgr.CompiledGrammar.deserialize_json(payload.decode(), self._info)
        # About as much as the text that says it.
        return self._grammar(
            compiled, is_json=is_json, named_ids=named_ids, unshared_bytes=len(payload)
        )

    def _grammar(
        self,
        compiled: xgr.CompiledGrammar,
        *,
        is_json: bool,
        named_ids: Sequence[int] = (),
        unshared_bytes: int = 0,
    ) -> XgrammarGrammar:
        masks = self._json_masks if is_json else self._text_masks
        return XgrammarGrammar(compiled, masks.with_ids(named_ids), unshared_bytes)

    def _checked(self, grammar: XgrammarGrammar, param: str) -> XgrammarGrammar:
        if not grammar.matcher().fill(np.zeros(self._num_words, dtype=np.int32)):
            raise InvalidRequest(f"{param}: no text at all matches", param=param)
        return grammar


@contextmanager
def _refusals(param: str) -> Generator[None]:
    """xgrammar's words as an `InvalidRequest` about `param`."""
    try:
        yield
    except RuntimeError as error:
        words = _LOG_PREFIX.sub("", str(error)).strip() or "the compiler refuses it"
        raise InvalidRequest(f"{param}: {words}", param=param) from error


@contextmanager
def _memory_errors() -> Generator[None]:
    """xgrammar's out of memory is a RuntimeError like any other; here it is Python's own."""
    try:
        yield
    except RuntimeError as error:
        if "bad_alloc" in str(error):
            raise MemoryError from None
        raise
