"""Keeps the promised times: how much prefill a step may take, and whom to refuse at once.

    time to first token    a request that would miss it is refused when it arrives, not later
    inter-token latency    chunks of prompts are cut so that a step with decodes is not longer

Both go by a model of the step time that is learnt while it runs; until it has seen a few steps
nothing is cut and nobody is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from .request import Request
from .step import Step, StepRow
from .step_time import StepTimeModel, StepWork

MIN_CHUNK = 4  # tokens of prefill in a step, whatever they delay: prompts must get on


class ServiceGoals:
    """The two goals in seconds, None for one that is not set."""

    def __init__(self, ttft_s: float | None, itl_s: float | None) -> None:
        self._ttft_s = ttft_s
        self._itl_s = itl_s
        self._model = StepTimeModel()

    @property
    def may_refuse(self) -> bool:
        """Whether anybody is refused at all."""
        return self._ttft_s is not None

    def observe(self, step: Step, seconds: float) -> None:
        """A step has settled, which kept the device busy for so long."""
        if self._ttft_s is not None or self._itl_s is not None:
            self._model.observe(StepWork.of(step.rows), seconds)

    def prefill_allowance(self, decodes: Iterable[StepRow]) -> PrefillAllowance:
        """What prompts may add to a step with these decodes."""
        if self._itl_s is None or not self._model.is_ready:
            return PrefillAllowance(None, math.inf)
        work = StepWork.of(decodes)
        if not work.tokens:
            return PrefillAllowance(None, math.inf)
        return PrefillAllowance(self._model, self._itl_s - self._model.predict(work))

    def lateness(
        self, tokens: int, decodes: Iterable[Request], max_step_tokens: int
    ) -> float | None:
        """How many seconds too late a request would get its first token, or None.

        `tokens` are to be prefilled until then, its own and those of all before it, while
        these `decodes` go on.
        """
        if self._ttft_s is None or not self._model.is_ready:
            return None
        late = self._first_token_s(tokens, decodes, max_step_tokens) - self._ttft_s
        return late if late > 0 else None

    def _first_token_s(
        self, tokens: int, decodes: Iterable[Request], max_step_tokens: int
    ) -> float:
        work = StepWork()
        for request in decodes:
            work = work.plus(request.kv_len, 1)
        chunk = max(1, min(tokens, max_step_tokens - work.tokens))
        if self._itl_s is not None and work.tokens:
            seconds = self._itl_s - self._model.predict(work)
            chunk = max(MIN_CHUNK, self._model.tokens_within(seconds, tokens // 2, chunk))
        step_s = self._model.predict(work.plus(tokens // 2, chunk))
        return math.ceil(tokens / chunk) * step_s


class PrefillAllowance:
    """The seconds that prompts may still add to a step."""

    def __init__(self, model: StepTimeModel | None, seconds: float) -> None:
        self._model = model
        self._seconds = seconds
        self._is_used = False

    def tokens(self, start: int, wanted: int) -> int:
        """How many of `wanted` tokens from position `start` on may be computed."""
        if self._model is None:
            return wanted
        least = 0 if self._is_used else min(wanted, MIN_CHUNK)
        return max(least, self._model.tokens_within(self._seconds, start, wanted))

    @property
    def is_used_up(self) -> bool:
        return self._is_used and self._seconds <= 0

    def use(self, start: int, num_new: int) -> None:
        """So many tokens will be computed."""
        self._is_used = True
        if self._model is not None:
            added = StepWork().plus(start, num_new)
            self._seconds -= self._model.predict(added) - self._model.predict(StepWork())
