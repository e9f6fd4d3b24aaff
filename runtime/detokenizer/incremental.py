"""One output's tokens to text, as they come; knows no requests and ends nothing.

The scheduler decides where an output ends. This module only keeps back what the scheduler
may still cut off, and bytes that are not a whole character yet.

    bytes so far    │ given out (decoded) │ held: may be part of a stop        │
                    0                 num_given                             num_bytes
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

from ..stop_patterns import WINDOW_BYTES, StopPatterns, stop_patterns
from .stop_automaton import stop_automaton


class IncrementalDetokenizer:
    """Text deltas of one output, byte-exact for any grouping of its tokens.

    The deltas together are `all_bytes[:num_text_bytes].decode("utf-8", "replace")`. The
    output continues a text, so a leading space is text whatever the tokenizer's family.
    Work is amortised O(new bytes), whatever the length of the output.
    """

    def __init__(
        self,
        visible_bytes: Callable[[int], bytes],
        stops: tuple[str, ...] = (),
        stop_regex: tuple[str, ...] = (),
    ) -> None:
        self._visible_bytes = visible_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._automaton = stop_automaton(stops) if stops else None
        self._patterns = stop_patterns(stop_regex) if stop_regex else None
        self._state = 0
        self._held = bytearray()
        self._num_given = 0

    def push(self, ids: Sequence[int]) -> str:
        """Take the next tokens; the text that no stop can cut off any more.

        A stop that ends in these tokens is held whole, with all that follows it: the
        scheduler may end the output there. If it goes on, the next text releases it.
        """
        new = b"".join(map(self._visible_bytes, ids))
        if not new:
            return ""
        hold_len = self._hold_len(new)
        self._held += new
        if self._patterns is not None:
            hold_len = max(hold_len, self._num_open(self._patterns, len(new)))
        return self._give(len(self._held) - hold_len)

    def finish(self, num_text_bytes: int, ids: Sequence[int] = ()) -> str:
        """Take the last tokens; the rest of the text, given its whole length in bytes.

        The text may end before the tokens do: at a stop string, or before a stop token.
        """
        self._held += b"".join(map(self._visible_bytes, ids))
        num_rest = num_text_bytes - self._num_given
        assert 0 <= num_rest <= len(self._held), (num_text_bytes, self._num_given, self._held)
        return self._give(num_rest) + self._decoder.decode(b"", final=True)

    def _num_open(self, patterns: StopPatterns, num_new: int) -> int:
        """How many of the held bytes to keep: what may become a match was held from its start."""
        most = WINDOW_BYTES + num_new
        return min(patterns.num_open(bytes(self._held[-most:])), most)

    def _give(self, num_bytes: int) -> str:
        given = bytes(self._held[:num_bytes])
        del self._held[:num_bytes]
        self._num_given += num_bytes
        return self._decoder.decode(given)

    def _hold_len(self, new: bytes) -> int:
        """How many of the last bytes to hold once `new` is appended."""
        automaton = self._automaton
        if automaton is None:
            return 0
        state, match_start = self._state, len(new)
        for end, byte in enumerate(new, 1):
            state = automaton.step(state, byte)
            if automaton.match_lens[state]:
                match_start = min(match_start, end - automaton.match_lens[state])
        self._state = state
        return max(automaton.depths[state], len(new) - match_start)
