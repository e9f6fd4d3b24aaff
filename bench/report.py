"""What every bench writes: a table on the terminal and one JSON file, with its machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Literal

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

Better = Literal["higher", "lower"]


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `target` is what it should reach, `peer` what it is measured against."""

    name: str
    value: float
    unit: str
    better: Better = "higher"
    target: float | None = None
    peer: str = ""
    note: str = ""

    @property
    def met(self) -> str:
        if self.target is None:
            return ""
        good = self.value >= self.target if self.better == "higher" else self.value <= self.target
        return "yes" if good else "no"


def spread(values: list[float]) -> str:
    """The range that a median comes from."""
    return f"{len(values)} runs, {min(values):.3g} to {max(values):.3g}"


def median_row(name: str, values: list[float], unit: str, note: str = "") -> Row:
    return Row(name, median(values), unit, note="; ".join(filter(None, [spread(values), note])))


def machine() -> dict[str, object]:
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def commit() -> str:
    here = Path(__file__).parent
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True
    )
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def publish(
    bench: str, rows: list[Row], json_file: Path | None, *, unprinted: Sequence[Row] = ()
) -> None:
    """Print the table; write the JSON file, with further rows, if one is asked for."""
    table = Table(title=f"{bench} at {commit()}")
    for column in ("name", "value", "unit", "target", "met", "peer", "note"):
        table.add_column(column, justify="right" if column in ("value", "target") else "left")
    for row in rows:
        target = "" if row.target is None else f"{row.target:g}"
        value = f"{row.value:,.3g}" if row.value < 1000 else f"{row.value:,.0f}"
        table.add_row(row.name, value, row.unit, target, row.met, row.peer, row.note)
    Console(width=150).print(table)
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        report = {
            "bench": bench,
            "commit": commit(),
            "machine": machine(),
            "rows": [asdict(row) for row in (*rows, *unprinted)],
        }
        json_file.write_text(json.dumps(report, indent=1) + "\n")
