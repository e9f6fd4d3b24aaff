"""Prompts of exact lengths for the benches."""

from __future__ import annotations

from espalier.runtime.engine import Engine


def prompt(engine: Engine, length: int, salt: int) -> list[int]:
    """English-like ids of an exact length; different salts share nothing after id one."""
    words = engine.codec.encode(" the river runs past a mill and under seven old bridges" * 4)
    return [
        1000 + salt,
        *(words[(i * (salt % 13 + 1) + salt) % len(words)] for i in range(length - 1)),
    ]
