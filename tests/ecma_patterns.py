"""Random ECMA-262 patterns, and node's own `RegExp` to judge them where it is installed."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import Sequence

NODE = shutil.which("node")
_ATOMS = ("a", "b", "1", ".", r"\d", r"\w", r"\s", r"\W", "[ab]", "[^a]", "[a-b1]", r"[^\w]", r"\n")
_QUANTIFIERS = ("*", "+", "?", "{2}", "{1,}", "{0,2}", "*?", "{1,2}?")


class PatternMaker:
    """Patterns over the letters a, b, 1 and whatever a class has besides."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def pattern(self, depth: int = 3) -> str:
        count = self._random.choice((1, 1, 1, 2, 3))
        return "|".join(self._sequence(depth) for _ in range(count))

    def with_lookaheads(self) -> str:
        aheads = "".join(
            f"(?{self._random.choice('=!')}{self.pattern(1)})"
            for _ in range(self._random.choice((1, 1, 2)))
        )
        anchored = f"^{aheads}{self._sequence(2)}"
        return self._random.choice((anchored, f"{anchored}$", f"{anchored}|{self._sequence(1)}"))

    def with_lookaheads_anywhere(self) -> str:
        ahead = f"(?{self._random.choice('=!')}{self.pattern(1)})"
        return f"{self._sequence(1)}(?:{ahead}{self._sequence(1)}|{self._sequence(1)})"

    def with_repeated_lookaheads(self) -> str:
        """Rounds that each look ahead: few of them, or of one character to the end."""
        ahead = f"(?{self._random.choice('=!')}{self.pattern(1)})"
        if self._random.random() < 0.5:
            count = self._random.choice(("?", "{2}", "{0,2}", "{1,3}"))
            return f"{self._sequence(1)}(?:{ahead}{self._sequence(1)}){count}{self._sequence(1)}"
        one = self._random.choice(_ATOMS)
        return f"{self._sequence(1)}(?:{ahead}{one}){self._random.choice('*+')}$"

    def _sequence(self, depth: int) -> str:
        return "".join(self._term(depth) for _ in range(self._random.choice((0, 1, 1, 2, 3))))

    def _term(self, depth: int) -> str:
        kind = self._random.random()
        if kind < 0.15:
            return self._random.choice("^$")
        atom = self._random.choice(_ATOMS)
        if depth and kind < 0.45:
            atom = f"{self._random.choice(('(', '(?:'))}{self.pattern(depth - 1)})"
        return atom + (self._random.choice(_QUANTIFIERS) if self._random.random() < 0.4 else "")


def node_searches(patterns: Sequence[str], texts: Sequence[str]) -> list[list[bool]]:
    """For each pattern, in which texts node finds it, with the `u` flag; one process for all."""
    script = """
    const {patterns, texts} = JSON.parse(require('fs').readFileSync(0));
    const expressions = patterns.map(pattern => new RegExp(pattern, "u"));
    const found = expressions.map(found => texts.map(text => found.test(text)));
    console.log(JSON.stringify(found));
    """
    assert NODE is not None
    done = subprocess.run(
        [NODE, "-e", script],
        input=json.dumps({"patterns": patterns, "texts": texts}),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found: list[list[bool]] = json.loads(done.stdout)
    return found
