"""Computes steps with the native kernels, one call a step; knows rows, never requests or
threads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from espalier.kernels.packing import PackedLinear
from espalier.kernels.plan import DeviceMemory, Plan, PreparedStep, TableEntry
from espalier.kernels.pool import Pool
from espalier.kernels.recorder import Recorder

from ..messages import TokenLogprob
from ..models.llama import LlamaModel
from ..models.rope import rope_tables
from ..sampling.native import NativeSampler
from ..sampling.sampler import SampleRow
from ..scheduler.step import Step, StepResult
from .kv_pool import KVPool

LOGPROB_BLOCK = 128  # prompt rows whose logits are held at one time: 25 MB at 49k ids


@dataclass(frozen=True, slots=True)
class NativeStep:
    step: Step
    prepared: PreparedStep


@dataclass(frozen=True, slots=True)
class NativeForward:
    """A step whose sampling rows' logits lie in the plan's buffer, in their order."""

    step: Step
    prompt_logprobs: dict[int, list[TokenLogprob]]


class NativeBackend:
    """A model recorded as a plan, with its KV pool and tables."""

    def __init__(
        self,
        model: LlamaModel[PackedLinear],
        pool: KVPool,
        threads: Pool,
        *,
        num_rows: int,
        context_len: int,
        max_step_tokens: int,
    ) -> None:
        self.pool = pool
        self._memory = _device_memory(model, pool, num_rows, context_len)
        self._ids_RP = self._memory.ids_RP.numpy()
        recorder = Recorder(model.heads)
        self.hidden = model.forward(recorder)
        self.logits = model.logits(recorder, recorder.select(self.hidden))
        self.plan = Plan(
            recorder,
            threads,
            self._memory,
            max_tokens=max_step_tokens,
            max_selected=max(num_rows, LOGPROB_BLOCK),
            keep=(self.hidden, self.logits),
        )
        self._logits_NV = self.plan.tensor(self.logits)
        self._sampler = NativeSampler(threads)

    def prepare(self, step: Step) -> NativeStep:
        rows_N3 = [(row.table_row, row.start, row.num_new) for row in step.rows]
        writes = [TableEntry(w.table_row, w.start, w.ids, w.slots) for w in step.writes]
        # Prompt log-probabilities need the logits' buffer first.
        selected = [] if _wants_prompt_logprobs(step) else step.sampling_tokens
        prepared = self.plan.prepare(
            writes, np.array(rows_N3, np.int32), np.array(selected, np.int32)
        )
        return NativeStep(step, prepared)

    def forward(self, prepared: NativeStep) -> NativeForward:
        step = prepared.step
        self.plan.run_prepared(prepared.prepared)
        if not _wants_prompt_logprobs(step):
            return NativeForward(step, {})
        prompt_logprobs = {
            index: self._prompt_logprobs(prepared, index)
            for index, row in enumerate(step.rows)
            if row.prompt_logprobs is not None
        }
        self.plan.read_out(prepared.prepared, np.array(step.sampling_tokens, np.int32))
        return NativeForward(step, prompt_logprobs)

    def sample(self, forward: NativeForward, rows: Mapping[int, SampleRow]) -> StepResult:
        step = forward.step
        sampling_rows = step.sampling_rows
        logits_NV = self._logits_NV[: len(sampling_rows)]
        places = [place for place, index in enumerate(sampling_rows) if index in rows]
        if len(places) < len(sampling_rows):
            logits_NV = logits_NV[places]
        indices = [sampling_rows[place] for place in places]
        sampled = self._sampler.sample(logits_NV, [rows[index] for index in indices])
        for index, token in zip(indices, sampled, strict=True):
            row = step.rows[index]
            if token.failure is None:  # else what stands there is an id too, for the next forward
                self._ids_RP[row.table_row, row.end] = token.token_id
        return StepResult(dict(zip(indices, sampled, strict=True)), forward.prompt_logprobs)

    def use_idle_time(self) -> bool:
        return self.pool.touch_ahead(int(self._memory.slots_RP.max()) + 1)

    def _prompt_logprobs(self, prepared: NativeStep, index: int) -> list[TokenLogprob]:
        """In blocks of rows: never one matrix of a whole prompt by the whole vocabulary."""
        wanted = prepared.step.rows[index].prompt_logprobs
        assert wanted is not None
        first = prepared.step.first_tokens[index] + wanted.first
        targets = wanted.targets.tolist()
        found: list[TokenLogprob] = []
        for start in range(0, len(targets), LOGPROB_BLOCK):
            block = targets[start : start + LOGPROB_BLOCK]
            tokens = np.arange(first + start, first + start + len(block), dtype=np.int32)
            self.plan.read_out(prepared.prepared, tokens)
            logits_NV = self._logits_NV[: len(block)]
            found += self._sampler.logprobs_of(logits_NV, block, wanted.num_top)
        return found


def _wants_prompt_logprobs(step: Step) -> bool:
    return any(row.prompt_logprobs is not None for row in step.rows)


def _device_memory(
    model: LlamaModel[PackedLinear], pool: KVPool, num_rows: int, context_len: int
) -> DeviceMemory:
    config = model.config
    cos_Pd, sin_Pd = rope_tables(config.rope, config.head_dim, context_len)
    half = config.head_dim // 2
    return DeviceMemory(
        ids_RP=torch.zeros((num_rows, context_len), dtype=torch.int32),
        slots_RP=torch.zeros((num_rows, context_len), dtype=torch.int32),
        k_pool_LSKd=pool.k_LSKd,
        v_pool_LSKd=pool.v_LSKd,
        k_scales_LSK=pool.k_scales_LSK,
        v_scales_LSK=pool.v_scales_LSK,
        cos_Pc=cos_Pd[:, :half].contiguous(),
        sin_Pc=sin_Pd[:, :half].contiguous(),
    )
