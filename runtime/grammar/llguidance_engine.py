"""The one seam to llguidance: builds Lark grammars, matches tokens, fills bitmasks.

llguidance turns its own errors, panics too, into the end of one matcher, which then allows
nothing. Stop tokens are kept from it: where the text may end is asked, and the rest is here.
Knows no requests and no threads.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from ..errors import InvalidRequest
from .token_masks import Bitmask, TokenMasks, has_bit, text_masks

# Else a mask would have one token wherever the next bytes are certain, and that one by
# llguidance's own idea of how to tokenise them. Of several such lines the last one counts.
_NO_FORCING = '\n%llguidance {"no_forcing": true}\n'
# What a grammar takes in memory, about, as allocated bytes grew with 20 copies of real ones.
_BASE_BYTES, _BYTES_PER_LARK_BYTE = 72 << 10, 36


class LlguidanceMatcher:
    """See `engine.Matcher`."""

    def __init__(
        self,
        matcher: LLMatcher,
        masks: TokenMasks,
        stop_ids: tuple[int, ...],
        last_id: int | None = None,
        *,
        is_terminated: bool = False,
    ) -> None:
        self._matcher = matcher
        self._masks = masks
        self._stop_ids = stop_ids
        self._last_id = last_id
        self._is_terminated = is_terminated

    @property
    def is_completed(self) -> bool:
        return self._is_terminated or self._matcher.is_accepting()

    @property
    def is_terminated(self) -> bool:
        return self._is_terminated

    def accept(self, token_id: int) -> bool:
        if self._is_terminated or not has_bit(self._masks.after(self._last_id), token_id):
            return False
        if token_id in self._stop_ids:
            self._is_terminated = self._matcher.is_accepting()
            return self._is_terminated
        if self._matcher.try_consume_tokens([token_id]) != 1:
            return False
        self._last_id = token_id
        return True

    def fill(self, row: Bitmask) -> bool:
        self._fill_at(row, row.ctypes.data)
        return bool(row.any())

    @staticmethod
    def fill_all(matchers: Sequence[tuple[int, LlguidanceMatcher]], rows: Bitmask) -> None:
        """Each into its row of `rows`, as `fill` does."""
        address = rows.ctypes.data
        for index, matcher in matchers:
            matcher._fill_at(rows[index], address + index * rows.strides[0])

    def _fill_at(self, row: Bitmask, address: int) -> None:
        """address: of `row`, which takes long to ask for."""
        assert not self._is_terminated, "a terminated matcher allows no token"
        if self._matcher.is_stopped():  # only the end can follow, or nothing after an error
            row[:] = 0
        else:
            self._matcher.unsafe_compute_mask_ptr(address, row.nbytes)
            np.bitwise_and(row, self._masks.after(self._last_id), out=row)
        words = row.data.cast("B").cast("I")
        can_end = self._matcher.is_accepting()
        for token_id in self._stop_ids:
            bit = 1 << token_id % 32
            others = words[token_id // 32] & ~bit
            words[token_id // 32] = others | bit if can_end else others

    def forced(self) -> bytes:
        return b"" if self._is_terminated else self._matcher.compute_ff_bytes()

    def fork(self) -> LlguidanceMatcher:
        return LlguidanceMatcher(
            self._matcher.deep_copy(),
            self._masks,
            self._stop_ids,
            self._last_id,
            is_terminated=self._is_terminated,
        )


class LlguidanceGrammar:
    """See `engine.EngineGrammar`."""

    def __init__(self, start: LlguidanceMatcher, num_bytes: int) -> None:
        self._start = start
        self._num_bytes = num_bytes

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def matcher(self) -> LlguidanceMatcher:
        return self._start.fork()


class LlguidanceCompiler:
    """Builds grammars for one vocabulary, as `XgrammarCompiler` does."""

    def __init__(
        self,
        token_bytes: Sequence[bytes],
        *,
        control_ids: Collection[int],
        stop_ids: Collection[int],
        vocab_width: int,
    ) -> None:
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(_Tokens(token_bytes, control_ids, stop_ids, vocab_width)),
            slices=LLTokenizer.json_slices(),
        )
        self._stop_ids = tuple(sorted(stop_ids))
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
        self._num_words = (vocab_width + 31) // 32

    def compile(self, lark: str, *, is_json: bool, param: str) -> LlguidanceGrammar:
        """The grammar whose root is the rule `start` of `lark`.

        `InvalidRequest`, naming `param`, with llguidance's words if it refuses the text.
        """
        matcher = LLMatcher(self._tokenizer, lark + _NO_FORCING, log_level=0)
        if matcher.is_error():
            raise InvalidRequest(f"{param}: {matcher.get_error().strip()}", param=param)
        masks = self._json_masks if is_json else self._text_masks
        start = LlguidanceMatcher(matcher, masks, self._stop_ids)
        grammar = LlguidanceGrammar(start, _BASE_BYTES + _BYTES_PER_LARK_BYTE * len(lark))
        if not grammar.matcher().fill(np.zeros(self._num_words, dtype=np.int32)):
            raise InvalidRequest(f"{param}: no text at all matches", param=param)
        return grammar


class _Tokens:
    """The vocabulary as llguidance wants to be given it."""

    def __init__(
        self,
        token_bytes: Sequence[bytes],
        control_ids: Collection[int],
        stop_ids: Collection[int],
        vocab_width: int,
    ) -> None:
        self.tokens = [*token_bytes, *[b""] * (vocab_width - len(token_bytes))]
        self.special_token_ids = sorted(control_ids)
        # It has to have one; where there is none, a token that no text needs.
        self.eos_token_id = min([*stop_ids] or [*control_ids] or [vocab_width - 1])
        self.bos_token_id = None

    def __call__(self, text: bytes) -> list[int]:
        """Not needed: nothing is forced, and only ids go into a matcher."""
        return []
