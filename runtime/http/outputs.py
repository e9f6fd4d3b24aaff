"""The outputs of one HTTP request: measured, merged for slow readers, gathered for whole answers.

Knows no wire format.
"""

from __future__ import annotations

from ..client import OpenCalls
from ..completion import Completion, collect, merge
from ..messages import FinishReason
from ..programs.backend import GenerateChunk
from ..tokenizer.tokenizer import Tokenizer
from .metrics import Metrics, RequestTimer, now
from .tracing import RequestTrace

Item = tuple[int, GenerateChunk]
"""The index of a call, and a chunk of it."""


class Outputs:
    """What comes back for `opened`; `started_s` (of `metrics.now`) is when it arrived.

    Whoever makes it calls `close` at last, unless `collect` has done so.
    """

    def __init__(
        self,
        opened: OpenCalls,
        metrics: Metrics,
        *,
        started_s: float | None = None,
        trace: RequestTrace | None = None,
    ) -> None:
        self.rids = opened.rids
        self._opened = opened
        self._metrics = metrics
        self._started_s = now() if started_s is None else started_s
        self._timers: dict[tuple[int, int], RequestTimer] = {}
        self._trace = trace
        self._closed = False

    @property
    def num_open(self) -> int:
        """Choices whose last chunk has not been taken yet."""
        return self._opened.num_open

    async def next(self) -> list[Item]:
        """What there is, at least one: (index of the call, chunk); `num_open` must not be 0.

        Chunks of one choice that are there already come as one, so that a slow reader gets
        fewer and larger ones.
        """
        items = [await self._opened.next()]
        while (ready := self._opened.next_ready()) is not None:
            items.append(ready)
        if len(items) > 1:
            items = _merged(items)
        for index, chunk in items:
            self._measure(index, chunk)
        return items

    async def collect(self) -> list[list[Completion]]:
        """The completions of each call, in the order of calls and choices."""
        by_call: list[list[GenerateChunk]] = [[] for _ in self.rids]
        try:
            while self.num_open:
                for index, chunk in await self.next():
                    by_call[index].append(chunk)
        finally:
            self.close()
        return [collect(chunks) for chunks in by_call]

    def close(self) -> None:
        """Nobody reads any more: what still runs is aborted. Idempotent."""
        if not self._closed:
            self._closed = True
            if self._opened.num_open:
                self._metrics.abandoned(self._opened.num_open)
            if self._trace is not None:
                self._trace.end(self._opened.num_open)
            self._opened.close()

    def _measure(self, index: int, chunk: GenerateChunk) -> None:
        key = index, chunk.choice
        timer = self._timers.get(key)
        if timer is None:
            timer = self._timers[key] = self._metrics.start(self._started_s)
        if chunk.ids:
            timer.tokens(len(chunk.ids))
        if chunk.finish is not None:
            timer.end(chunk.finish, chunk.usage)
            if self._trace is not None:
                self._trace.choice_ended(self.rids[index], chunk)


def matched_text(finish: FinishReason, tokenizer: Tokenizer) -> str:
    """The end that `no_stop_trim` keeps: the stop string, or what a stop token says, if anything.

    It goes on a text, so a space at its beginning is its own, whatever the tokenizer.
    """
    if isinstance(finish.matched, int):
        return tokenizer.visible_bytes(finish.matched).decode("utf-8", "replace")
    return finish.matched or ""


def _merged(items: list[Item]) -> list[Item]:
    by_choice: dict[tuple[int, int], list[GenerateChunk]] = {}
    for index, chunk in items:
        by_choice.setdefault((index, chunk.choice), []).append(chunk)
    return [(index, merge(chunks)) for (index, _), chunks in by_choice.items()]
