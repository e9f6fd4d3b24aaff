"""What the grammar compilers have done and hold; knows no engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

StopReason = Literal["deadline", "abandoned", "crash", "memory"]


@dataclass(frozen=True, slots=True)
class GrammarStats:
    """num_running and num_queued: compilations now. num_stopped: those that were killed or died,
    by why: nobody could wait longer, nobody wanted it any more, the compiler crashed, it took
    too much memory. cache_bytes: what compiled grammars take.
    """

    num_running: int = 0
    num_queued: int = 0
    num_stopped: dict[StopReason, int] = field(default_factory=dict[StopReason, int])
    cache_bytes: int = 0
