"""Native threads, and what they do besides plans: sampling. Addresses are not checked here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import _cpu

MAX_CPUS = 1024  # that a cpu_set_t can name


def instruction_sets() -> tuple[str, ...]:
    """Those that the extension can use on this processor, the fastest first."""
    return _cpu.isas()


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """Threads, the caller's own among them, and the instruction set that they use.

    They spin for a moment before they sleep, and do not survive a fork. One call at a time:
    RuntimeError for a second one.
    """

    isa: str
    num_threads: int
    handle: object

    @classmethod
    def start(
        cls, num_threads: int, isa: str | None = None, cpus: Sequence[int] | None = None
    ) -> Pool:
        """`isa`: one of `instruction_sets`, by default the fastest.

        With `cpus` each thread stays on one of them, the caller's on the first: only for who
        has all of these for itself.
        """
        isa = isa or instruction_sets()[0]
        places = () if cpus is None else tuple(cpus)
        assert num_threads >= 1 and isa in instruction_sets(), (num_threads, isa)
        assert not places or len(places) == num_threads, (num_threads, places)
        assert all(0 <= cpu < MAX_CPUS for cpu in places), places
        return cls(isa, num_threads, _cpu.new_pool(num_threads, places))

    def sample(
        self,
        logits: int,
        stride: int,
        vocab_size: int,
        num_rows: int,
        rows: int,
        results: int,
        tops: int,
    ) -> None:
        """One token for each row of logits.

        Logits are `num_rows` rows of `vocab_size` float32, `stride` elements apart. `rows`,
        `results` and `tops` are arrays of the structs in kernels/csrc/sampling.h.
        """
        _cpu.sample(
            self.isa, self.handle, logits, stride, vocab_size, num_rows, rows, results, tops
        )

    def find_logprobs(
        self,
        logits: int,
        stride: int,
        vocab_size: int,
        num_rows: int,
        targets: int,
        num_top: int,
        logprobs: int,
        tops: int,
    ) -> None:
        """Log-probabilities (float64) of each row's target (int32) and most likely tokens."""
        _cpu.find_logprobs(
            self.isa,
            self.handle,
            logits,
            stride,
            vocab_size,
            num_rows,
            targets,
            num_top,
            logprobs,
            tops,
        )
