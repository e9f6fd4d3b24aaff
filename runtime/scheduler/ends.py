"""The one authority on where a request ends: stop ids, stop strings, stop patterns and lengths.

Stop strings and patterns are matched over the bytes of the visible text, each byte looked at a
bounded number of times; control tokens have no visible bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from ..messages import FinishReason
from ..sampling.params import SamplingParams
from ..stop_patterns import StopSearch, stop_patterns

VisibleBytes = Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class End:
    """An end found after a token.

    `num_text_bytes` is the length of the output text before the stop, `num_kept_tokens`
    the number of output tokens wholly inside that text.
    """

    reason: FinishReason
    num_text_bytes: int
    num_kept_tokens: int


class EndMatcher:
    """Watches one request's output tokens for its end.

    Stop strings are looked for in the last (longest stop - 1) bytes plus the new ones, so
    the work per token is bounded; patterns see the text from `min_new_tokens` on. The stop
    that ends first wins; of those, the one that begins first.
    """

    def __init__(
        self, params: SamplingParams, eos_ids: Collection[int], visible_bytes: VisibleBytes
    ) -> None:
        self._params = params
        self._end_ids = set(params.stop_token_ids)
        if not params.ignore_eos:
            self._end_ids.update(eos_ids)
        self._visible_bytes = visible_bytes
        self._stops = {stop.encode(): stop for stop in params.stop}
        self._overlap = max(map(len, self._stops), default=1) - 1
        patterns = params.stop_regex
        self._search = StopSearch(stop_patterns(patterns)) if patterns else None
        self._tail = b""
        self._num_bytes = 0
        self._token_ends: list[int] = []  # text length in bytes after each output token

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids that end this request, so that they may be banned before `min_new_tokens`."""
        return frozenset(self._end_ids)

    @property
    def num_window_bytes(self) -> int:
        """Bytes of past text that the next search looks at again."""
        return len(self._tail)

    def so_far(self, reason: FinishReason) -> End:
        """An end right here, for a reason of the caller's: all tokens and text are kept."""
        return End(reason, self._num_bytes, len(self._token_ends))

    def push(self, token_id: int) -> End | None:
        """Take the next output token; its end if it is one (an end id has no text)."""
        if token_id in self._end_ids and len(self._token_ends) >= self._params.min_new_tokens:
            end = self.so_far(FinishReason(kind="stop", matched=token_id))
            self._token_ends.append(self._num_bytes)
            return end
        return self._take(self._visible_bytes(token_id))

    def respell(self, token_id: int) -> End | None:
        """The last output token, which was no end, is this one: with its text and some more."""
        self._token_ends.pop()
        begin = self._token_ends[-1] if self._token_ends else 0
        return self._take(self._visible_bytes(token_id)[self._num_bytes - begin :])

    def _take(self, new: bytes) -> End | None:
        """The bytes of one more token."""
        old_len, window = len(self._tail), self._tail + new
        window_start = self._num_bytes - old_len
        self._num_bytes += len(new)
        self._token_ends.append(self._num_bytes)
        self._tail = window[-self._overlap :] if self._overlap else b""
        if len(self._token_ends) >= self._params.min_new_tokens:
            stops = (self._find_stop(window, old_len, window_start), self._find_pattern(new))
            if found := min(filter(None, stops), default=None):
                _, start, stop = found
                return self._cut(start, FinishReason(kind="stop", matched=stop))
        if len(self._token_ends) >= self._params.max_new_tokens:
            return self.so_far(FinishReason(kind="length"))
        return None

    def _find_pattern(self, new: bytes) -> tuple[int, int, str] | None:
        """As `_find_stop`, of the patterns; to be called with all text from its first call on."""
        if self._search is None or (found := self._search.push(new)) is None:
            return None
        match, text = found
        start = self._num_bytes - self._search.num_bytes
        return start + match.end, start + match.start, text.decode("utf-8", "replace")

    def _find_stop(
        self, window: bytes, old_len: int, window_start: int
    ) -> tuple[int, int, str] | None:
        """The winning stop that ends in the new bytes: where it ends and begins, and itself."""
        best: tuple[int, int, str] | None = None
        for stop_bytes, stop in self._stops.items():
            at = window.find(stop_bytes, max(0, old_len - len(stop_bytes) + 1))
            if at >= 0 and (best is None or (at + len(stop_bytes), at) < best[:2]):
                best = (at + len(stop_bytes), at, stop)
        if best is None:
            return None
        end, start, stop = best
        return window_start + end, window_start + start, stop

    def _cut(self, num_text_bytes: int, reason: FinishReason) -> End:
        kept = len(self._token_ends)
        while kept and self._token_ends[kept - 1] > num_text_bytes:
            kept -= 1
        return End(reason, num_text_bytes, kept)
