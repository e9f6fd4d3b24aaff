"""Espalier as a contender, once for each precision of its weights."""

from __future__ import annotations

import sys

from bench.peers.completions import response_format
from bench.peers.contender import Contender

_POOL_TOKENS = 32_768  # as the peers have

DEFAULT = "espalier default"


def contenders(threads: int) -> list[Contender]:
    """One for each `--dtype` that has a target, and `DEFAULT`, which passes none."""
    labelled = [
        _contender(f"espalier {name}", threads, ["--dtype", dtype])
        for name, dtype in (("f32", "float32"), ("int8", "int8"), ("q4", "q4"))
    ]
    return [*labelled, _contender(DEFAULT, threads, [])]


def _contender(name: str, threads: int, flags: list[str]) -> Contender:
    def command(port: int) -> list[str]:
        return [
            *(sys.executable, "-m", "espalier", "serve", "smollm2", "--port", str(port)),
            *("--num-threads", str(threads), "--max-total-tokens", str(_POOL_TOKENS)),
            *flags,
        ]

    return Contender(
        name=name,
        engine="espalier",
        command=command,
        ready_path="/ready",
        fields={"model": "default"},
        schema_fields=response_format,
    )
