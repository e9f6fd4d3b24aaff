"""Runs steps with torch on one worker thread, the "device"; knows rows, never requests.

The worker takes forwards and samplings in the order of their submission, so the sampler of
step k has written its tokens into the token table before the forward of step k + 1 reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from espalier.kernels.ops import AttentionRows

from ..messages import TokenLogprob
from ..models.llama import LlamaModel
from ..sampling.logprobs import logprobs_of
from ..sampling.sampler import SampleRow, sample
from ..scheduler.step import PromptLogprobs, Step, StepResult
from .device_thread import DeviceThread
from .kv_pool import DeviceTables, KVPool

T = TypeVar("T")

LOGPROB_BLOCK = 128  # prompt rows whose logits are held at one time: 25 MB at 49k ids


@dataclass(frozen=True, slots=True)
class _Forward:
    """What a forward leaves for its sampling: logits of the sampling rows, in their order."""

    sampling_rows: tuple[int, ...]
    logits_NV: Tensor
    prompt_logprobs: dict[int, list[TokenLogprob]]


class TorchRunner:
    """One model, its KV pool and tables, and the thread that may touch them."""

    def __init__(self, model: LlamaModel, pool: KVPool, tables: DeviceTables) -> None:
        self._model = model
        self.pool = pool
        self.tables = tables
        self._device = DeviceThread()
        self._newest: TorchLaunchedStep | None = None

    def launch(self, step: Step) -> TorchLaunchedStep:
        newest = self._newest
        before = None if newest is None or newest.is_seen else newest
        forward = self.submit(lambda: self._forward_after(before, step))
        self._newest = TorchLaunchedStep(self, step, forward)
        return self._newest

    def close(self) -> None:
        self._device.close()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Have the device do `work`, after all that it was given before."""
        return self._device.submit(work)

    def submit_sampling(
        self, step: Step, forward: Future[_Forward], rows: Mapping[int, SampleRow]
    ) -> Future[StepResult]:
        return self.submit(lambda: self._sample(step, forward, rows))

    def _forward_after(self, before: TorchLaunchedStep | None, step: Step) -> _Forward:
        """The scheduler planned `step` without knowing that the one before would fail: its
        tables would be wrong, and it might write into the slots of others."""
        if before is not None and before.has_failed:
            raise RuntimeError(f"step {before.step.number}, the one before, has failed")
        return self._forward(step)

    @torch.inference_mode()
    def _forward(self, step: Step) -> _Forward:
        self.tables.apply(step.writes)
        table_rows = [row.table_row for row in step.rows]
        lengths = [row.num_new for row in step.rows]
        rows = AttentionRows.of(
            self.tables.slots_RP, table_rows, [row.start for row in step.rows], lengths
        )
        table_rows_T = torch.repeat_interleave(torch.tensor(table_rows), torch.tensor(lengths))
        positions_T = torch.cat([torch.arange(row.start, row.end) for row in step.rows])
        hidden_TD = self._model.forward(
            self.tables.ids_RP[table_rows_T, positions_T],
            positions_T,
            self.tables.slots_RP[table_rows_T, positions_T],
            self.pool.k_LSKd,
            self.pool.v_LSKd,
            rows,
        )
        return self._read_out(step, hidden_TD)

    def _read_out(self, step: Step, hidden_TD: Tensor) -> _Forward:
        """Logits where something is sampled, and the prompt log-probabilities asked for."""
        sampling_rows: list[int] = []
        last_tokens: list[int] = []
        prompt_logprobs: dict[int, list[TokenLogprob]] = {}
        offset = 0
        for index, row in enumerate(step.rows):
            if row.prompt_logprobs is not None:
                wanted = row.prompt_logprobs
                prompt_logprobs[index] = self._prompt_logprobs(hidden_TD[offset:], wanted)
            offset += row.num_new
            if row.samples:
                sampling_rows.append(index)
                last_tokens.append(offset - 1)
        logits_NV = self._model.logits(hidden_TD[last_tokens])
        return _Forward(tuple(sampling_rows), logits_NV, prompt_logprobs)

    def _prompt_logprobs(self, hidden_TD: Tensor, wanted: PromptLogprobs) -> list[TokenLogprob]:
        """In blocks of rows: never one matrix of a whole prompt by the whole vocabulary."""
        targets = wanted.targets.tolist()
        found: list[TokenLogprob] = []
        for start in range(0, len(targets), LOGPROB_BLOCK):
            block = targets[start : start + LOGPROB_BLOCK]
            first = wanted.first + start
            logits_NV = self._model.logits(hidden_TD[first : first + len(block)])
            found += logprobs_of(logits_NV, block, wanted.num_top)
        return found

    @torch.inference_mode()
    def _sample(
        self, step: Step, forward: Future[_Forward], rows: Mapping[int, SampleRow]
    ) -> StepResult:
        done = forward.result()
        places = [place for place, index in enumerate(done.sampling_rows) if index in rows]
        indices = [done.sampling_rows[place] for place in places]
        logits_NV = done.logits_NV
        if len(places) < len(logits_NV):
            logits_NV = logits_NV[places]
        sampled = sample(logits_NV, [rows[index] for index in indices]) if indices else []
        for index, token in zip(indices, sampled, strict=True):
            row = step.rows[index]
            if token.failure is None:  # else what stands there is an id too, for the next forward
                self.tables.ids_RP[row.table_row, row.end] = token.token_id
        return StepResult(dict(zip(indices, sampled, strict=True)), done.prompt_logprobs)


class TorchLaunchedStep:
    """A step on the worker thread; see `LaunchedStep`."""

    def __init__(self, runner: TorchRunner, step: Step, forward: Future[_Forward]) -> None:
        self.step = step
        self._runner = runner
        self._forward = forward
        self._sampling: Future[StepResult] | None = None
        self._is_seen = False

    @property
    def is_seen(self) -> bool:
        """Whether the scheduler knows how this step ended: what it plans now allows for it."""
        return self._is_seen

    @property
    def has_failed(self) -> bool:
        """Whether the forward raised; for the device's thread, on which it is over."""
        return self._forward.exception() is not None

    def sample(self, rows: Mapping[int, SampleRow]) -> None:
        assert self._sampling is None, f"step {self.step.number} is sampled twice"
        self._sampling = self._runner.submit_sampling(self.step, self._forward, rows)

    def result(self) -> StepResult:
        assert self._sampling is not None, f"step {self.step.number} was never sampled"
        try:
            return self._sampling.result()
        finally:
            self._is_seen = True

    def discard(self) -> None:
        wait([self._forward])
        if self._sampling is not None:
            wait([self._sampling])
        self._is_seen = True
