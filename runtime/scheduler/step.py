"""One planned step: what the scheduler asks of the device and what comes back; no request.

Every step is an extend: each row computes its next `num_new` >= 1 tokens. The device keeps
two tables, indexed by table row and position: token ids and KV slots. A step first applies
its `writes` to them, then runs its rows; the id of a token that an earlier step sampled is
already in the table, written there by the sampler, so planning never waits for it.

    table row r     0 ......... start ......... start + num_new
    token ids       known       computed now    (sampled here, if `samples`)
    slots           read        written, read
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from ..messages import TokenLogprob
from ..sampling.sampler import Sampled

IntArray = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class TableWrite:
    """New table entries of one row from position `start` on; either array may be empty."""

    table_row: int
    start: int
    ids: IntArray
    slots: IntArray


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log-probabilities wanted of prompt tokens whose predecessors this step computes.

    `targets[i]` is the token at position `start + first + i + 1` of the row, predicted by
    the hidden state of its new token number `first + i`.
    """

    first: int
    targets: IntArray
    num_top: int


@dataclass(frozen=True, slots=True)
class StepRow:
    """One request's share of a step: positions [start, start + num_new) of a table row."""

    table_row: int
    start: int
    num_new: int
    samples: bool
    prompt_logprobs: PromptLogprobs | None = None

    @property
    def end(self) -> int:
        return self.start + self.num_new


@dataclass(frozen=True, slots=True)
class Step:
    """Steps are numbered upwards from 0 and run in that order. Tokens of a step are counted in
    the order of its rows."""

    number: int
    rows: tuple[StepRow, ...]
    writes: tuple[TableWrite, ...]

    @property
    def num_tokens(self) -> int:
        return sum(row.num_new for row in self.rows)

    @property
    def first_tokens(self) -> list[int]:
        """The first token of each row."""
        ends = list(accumulate(row.num_new for row in self.rows))
        return [end - row.num_new for end, row in zip(ends, self.rows, strict=True)]

    @property
    def sampling_rows(self) -> tuple[int, ...]:
        """Rows after whose last token one is sampled."""
        return tuple(index for index, row in enumerate(self.rows) if row.samples)

    @property
    def sampling_tokens(self) -> list[int]:
        """The last tokens of the sampling rows."""
        ends = accumulate(row.num_new for row in self.rows)
        return [end - 1 for end, row in zip(ends, self.rows, strict=True) if row.samples]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step gave, by the index of the row in the step."""

    sampled: dict[int, Sampled] = field(default_factory=dict[int, Sampled])
    prompt_logprobs: dict[int, list[TokenLogprob]] = field(
        default_factory=dict[int, list[TokenLogprob]]
    )
    device_s: float = 0.0
    """How long the device was busy with it."""
