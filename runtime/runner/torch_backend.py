"""Computes steps with torch's kernels; knows rows, never requests or threads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from espalier.kernels.ops import AttentionRows
from espalier.kernels.torch_ops import TorchOps, TorchStep

from ..messages import TokenLogprob
from ..models.llama import LlamaModel
from ..models.rope import rope_tables
from ..sampling.logprobs import logprobs_of
from ..sampling.sampler import SampleRow, sample
from ..scheduler.step import PromptLogprobs, Step, StepResult
from .kv_pool import DeviceTables, KVPool

LOGPROB_BLOCK = 128  # prompt rows whose logits are held at one time: 25 MB at 49k ids


@dataclass(frozen=True, slots=True)
class TorchForward:
    """What a forward leaves for its sampling: logits of the sampling rows, in their order."""

    step: Step
    sampling_rows: tuple[int, ...]
    logits_NV: Tensor
    prompt_logprobs: dict[int, list[TokenLogprob]]


class TorchBackend:
    """One model, its KV pool and its tables."""

    def __init__(self, model: LlamaModel[Tensor], pool: KVPool, tables: DeviceTables) -> None:
        self._model = model
        self.pool = pool
        self.tables = tables
        context_len = tables.slots_RP.shape[1]
        config = model.config
        cos_Pd, sin_Pd = rope_tables(config.rope, config.head_dim, context_len)
        dtype = pool.k_LSKd.dtype  # that of the activations
        self._cos_Pd, self._sin_Pd = cos_Pd.to(dtype), sin_Pd.to(dtype)

    def prepare(self, step: Step) -> Step:
        return step

    @torch.inference_mode()
    def forward(self, prepared: Step) -> TorchForward:
        step = prepared
        self.tables.apply(step.writes)
        ops = self._ops(step)
        hidden_TD = self._model.forward(ops)
        return self._read_out(ops, step, hidden_TD)

    @torch.inference_mode()
    def sample(self, forward: TorchForward, rows: Mapping[int, SampleRow]) -> StepResult:
        places = [place for place, index in enumerate(forward.sampling_rows) if index in rows]
        indices = [forward.sampling_rows[place] for place in places]
        logits_NV = forward.logits_NV
        if len(places) < len(logits_NV):
            logits_NV = logits_NV[places]
        sampled = sample(logits_NV, [rows[index] for index in indices]) if indices else []
        for index, token in zip(indices, sampled, strict=True):
            row = forward.step.rows[index]
            if token.failure is None:  # else what stands there is an id too, for the next forward
                self.tables.ids_RP[row.table_row, row.end] = token.token_id
        return StepResult(dict(zip(indices, sampled, strict=True)), forward.prompt_logprobs)

    def use_idle_time(self) -> bool:
        return self.pool.touch_ahead(int(self.tables.slots_RP.max()) + 1)

    def _ops(self, step: Step) -> TorchOps:
        table_rows = [row.table_row for row in step.rows]
        lengths = [row.num_new for row in step.rows]
        rows = AttentionRows.of(
            self.tables.slots_RP, table_rows, [row.start for row in step.rows], lengths
        )
        table_rows_T = torch.repeat_interleave(torch.tensor(table_rows), torch.tensor(lengths))
        positions_T = torch.cat([torch.arange(row.start, row.end) for row in step.rows])
        return TorchOps(
            self._model.heads,
            self.pool.k_LSKd,
            self.pool.v_LSKd,
            TorchStep(
                self.tables.ids_RP[table_rows_T, positions_T],
                self.tables.slots_RP[table_rows_T, positions_T],
                self._cos_Pd[positions_T],
                self._sin_Pd[positions_T],
                rows,
            ),
        )

    def _read_out(self, ops: TorchOps, step: Step, hidden_TD: Tensor) -> TorchForward:
        """Logits where something is sampled, and the prompt log-probabilities asked for."""
        prompt_logprobs: dict[int, list[TokenLogprob]] = {}
        first_tokens = step.first_tokens
        for index, row in enumerate(step.rows):
            if row.prompt_logprobs is not None:
                of_row = hidden_TD[first_tokens[index] :]
                prompt_logprobs[index] = self._prompt_logprobs(ops, of_row, row.prompt_logprobs)
        logits_NV = self._model.logits(ops, hidden_TD[step.sampling_tokens])
        return TorchForward(step, step.sampling_rows, logits_NV, prompt_logprobs)

    def _prompt_logprobs(
        self, ops: TorchOps, hidden_TD: Tensor, wanted: PromptLogprobs
    ) -> list[TokenLogprob]:
        """In blocks of rows: never one matrix of a whole prompt by the whole vocabulary."""
        targets = wanted.targets.tolist()
        found: list[TokenLogprob] = []
        for start in range(0, len(targets), LOGPROB_BLOCK):
            block = targets[start : start + LOGPROB_BLOCK]
            first = wanted.first + start
            logits_NV = self._model.logits(ops, hidden_TD[first : first + len(block)])
            found += logprobs_of(logits_NV, block, wanted.num_top)
        return found
