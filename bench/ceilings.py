"""What this machine can do at best: a small C++ program measures it in the same run."""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import astuple, dataclass
from pathlib import Path

from bench.report import Row

_SOURCE = Path(__file__).with_name("ceilings.cpp")


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Of all given threads together. `nibble_gop_s`: bytes times 4-bit numbers. `touch_gb_s`: of
    one thread, first writes to huge pages; `touch_again_gb_s`: to pages that the system has had
    before, where a virtual machine's host need not find any.

    What others leave of a shared machine differs from minute to minute: measure ceilings before
    and after what they are for, and take the `higher` ones.
    """

    touch_gb_s: float
    touch_again_gb_s: float
    read_gb_s: float
    fma_gflop_s: float
    byte_gop_s: float
    nibble_gop_s: float

    @classmethod
    def measure(cls, num_threads: int) -> Ceilings:
        """Takes a C++ compiler and some seconds."""
        with tempfile.TemporaryDirectory() as directory:
            program = Path(directory) / "ceilings"
            command = ["g++", "-std=c++20", "-O2", "-pthread", str(_SOURCE), "-o", str(program)]
            subprocess.run(command, check=True)
            done = subprocess.run(
                [program, str(num_threads)], capture_output=True, text=True, check=True
            )
        figures = dict(line.split() for line in done.stdout.splitlines())
        return cls(**{name: float(value) for name, value in figures.items()})

    def higher(self, other: Ceilings) -> Ceilings:
        """Each figure from where it is higher."""
        ours, theirs = astuple(self), astuple(other)
        return Ceilings(*(max(pair) for pair in zip(ours, theirs, strict=True)))

    def rows(self) -> list[Row]:
        return [
            Row("first writes to new memory", self.touch_gb_s, "GB/s"),
            Row("first writes to memory that the system has had", self.touch_again_gb_s, "GB/s"),
            Row("ceiling: reads of memory", self.read_gb_s, "GB/s"),
            Row("ceiling: FMA on registers", self.fma_gflop_s, "GFLOP/s"),
            Row("ceiling: products of bytes", self.byte_gop_s, "GOP/s"),
            Row("ceiling: products of bytes with 4-bit weights", self.nibble_gop_s, "GOP/s"),
        ]
