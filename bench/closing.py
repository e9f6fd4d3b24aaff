"""Whether output ends whole within any budget, whoever samples: `python -m bench.closing FILE`.

FILE has one schema a line, as in `bench.schemas`. For each of them, each sampler and each budget
of tokens the text is generated with the default model's vocabulary, and checked. Runs that do not
feel their budget yet are one and the same, so each budget goes on from where it begins to count.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.schemas.data import Group, read_groups
from espalier.runtime.assembly import grammar_engines
from espalier.runtime.errors import InvalidRequest
from espalier.runtime.grammar.compile_job import compile_constraint
from espalier.runtime.grammar.guide import CompiledGrammar, Guide
from espalier.runtime.grammar.validation import validate_json
from espalier.runtime.hub.source import resolve_model
from espalier.runtime.messages import JsonSchema
from espalier.runtime.tokenizer.tokenizer import load_tokenizer

MAX_BUDGET = 200


def _whitespace(text: bytes) -> float:
    return sum(byte in b" \t\n\r" for byte in text) / max(len(text), 1)


def _open_string(text: bytes) -> float:
    """Text first, then what may begin a string: `"` ends one only where nothing else is left."""
    if text.strip(b" ").isalpha() and text not in (b"true", b"false", b"null", b"t", b"f", b"n"):
        return 3
    return 2 if text.endswith(b'"') else 1


def _digits(text: bytes) -> float:
    return sum(byte in b"0123456789" for byte in text) / max(len(text), 1)


def _openers(text: bytes) -> float:
    """Not of the issue: as deep as it goes, and as many structural bytes at once as there are."""
    return sum(byte in b'{[,"' for byte in text)


SAMPLERS: dict[str, Callable[[bytes], float]] = {
    "whitespace": _whitespace,
    "open strings": _open_string,
    "digits": _digits,
    "openers": _openers,
}


class Sampler:
    """Takes of the allowed tokens the one that it likes best, and a stop token last of all."""

    def __init__(
        self, token_bytes: Sequence[bytes], stop_ids: Sequence[int], width: int, name: str
    ) -> None:
        scores = np.zeros((width + 31) // 32 * 32)
        scores[: len(token_bytes)] = list(map(SAMPLERS[name], token_bytes))
        scores[list(stop_ids)] = -1
        self._order: npt.NDArray[np.int64] = np.argsort(-scores, kind="stable")
        self._row = np.zeros(len(scores) // 32, dtype=np.int32)

    def token(self, guide: Guide, left: int) -> int | None:
        """None if the guide allows none."""
        if not guide.fill(self._row, left):
            return None
        allowed = np.unpackbits(self._row.view(np.uint8), bitorder="little")
        return int(self._order[allowed[self._order].argmax()])


@dataclass(frozen=True, slots=True)
class Run:
    """trouble: why it did not end with a stop token, if so."""

    budget: int
    text: bytes
    trouble: str | None


def runs(
    grammar: CompiledGrammar, sampler: Sampler, budgets: Sequence[int], token_bytes: Sequence[bytes]
) -> Iterator[Run]:
    """One for each budget, all of which are enough."""
    guide, text = grammar.guide(), b""
    waiting = sorted(budgets)
    taken = 0
    while waiting and not guide.is_terminated:
        feeling = [budget for budget in waiting if not guide.fits(budget - taken)]
        for budget in feeling:
            yield _finished(guide.fork(), sampler, budget, taken, text, token_bytes)
        waiting = [budget for budget in waiting if budget not in feeling]
        if waiting:
            token_id = sampler.token(guide, waiting[-1] - taken)
            if token_id is None or not guide.accept(token_id):
                yield from (Run(budget, text, "no token is allowed") for budget in waiting)
                return
            taken += 1
            text += b"" if guide.is_terminated else token_bytes[token_id]
    yield from (Run(budget, text, None) for budget in waiting)


def _finished(
    guide: Guide,
    sampler: Sampler,
    budget: int,
    taken: int,
    text: bytes,
    token_bytes: Sequence[bytes],
) -> Run:
    while taken < budget:
        token_id = sampler.token(guide, budget - taken)
        if token_id is None or not guide.accept(token_id):
            return Run(budget, text, f"no token is allowed, {budget - taken} left")
        taken += 1
        if guide.is_terminated:
            return Run(budget, text, None)
        text += token_bytes[token_id]
    # Whole at the last token: a budget without room for the stop token ends with "length".
    return Run(budget, text, None if guide.is_completed else "cut off")


def troubles(schema: str, found: Sequence[Run]) -> Iterator[str]:
    """Of each run that did not end, or whose text is not valid."""
    verdicts: dict[bytes, str | None] = {}
    for run in found:
        if run.trouble is None and run.text not in verdicts:
            verdict = validate_json(schema, run.text.decode())
            verdicts[run.text] = None if verdict.valid is not False else f"invalid: {verdict}"
        trouble = run.trouble or verdicts[run.text]
        if trouble:
            yield f"{trouble} with {run.budget} tokens: {run.text[-200:]!r}"


@dataclass(slots=True)
class Tally:
    """Of one sampler."""

    num_refused: int = 0
    num_ended: int = 0
    troubles: list[str] = field(default_factory=list[str])

    def add(self, other: Tally) -> None:
        self.num_refused += other.num_refused
        self.num_ended += other.num_ended
        self.troubles += other.troubles


@dataclass(frozen=True, slots=True)
class Outcome:
    """One schema's. engine: None if the schema is refused. tallies: by sampler."""

    name: str
    engine: str | None
    tallies: dict[str, Tally]


class Contest:
    """All samplers against one schema after another."""

    def __init__(self) -> None:
        tokenizer = load_tokenizer(resolve_model("smollm2").path)
        self._engines = grammar_engines(tokenizer, tokenizer.vocab_size)
        vocabulary = self._engines.vocabulary
        self._tokens = vocabulary.token_bytes
        self._samplers = {
            name: Sampler(self._tokens, vocabulary.stop_ids, vocabulary.width, name)
            for name in SAMPLERS
        }

    def outcome(self, group: Group) -> Outcome:
        """Of each budget from 1 to `MAX_BUDGET`."""
        try:
            artefact = compile_constraint(JsonSchema(group.schema), self._engines)
        except InvalidRequest:
            return Outcome(group.name, None, {})
        grammar = self._engines.load(artefact)
        enough = range(max(1, grammar.min_tokens), MAX_BUDGET + 1)
        tallies: dict[str, Tally] = {}
        for name, sampler in self._samplers.items():
            found = list(runs(grammar, sampler, enough, self._tokens))
            new = [f"{group.name}: {trouble}" for trouble in troubles(group.schema, found)]
            tallies[name] = Tally(MAX_BUDGET - len(enough), len(found), new)
        return Outcome(group.name, artefact.engine, tallies)


@cache
def _contest() -> Contest:
    """One for each process."""
    return Contest()


def _outcome(group: Group) -> Outcome:
    return _contest().outcome(group)


def measure(groups: Sequence[Group], num_jobs: int) -> None:
    totals = {name: Tally() for name in SAMPLERS}
    engines: Counter[str] = Counter()
    with ProcessPoolExecutor(num_jobs, get_context("spawn")) as pool:
        for number, outcome in enumerate(pool.map(_outcome, groups), 1):
            engines[outcome.engine or "refused"] += 1
            for name, tally in outcome.tallies.items():
                totals[name].add(tally)
                for trouble in tally.troubles[:3]:
                    print(trouble)
            print(f"{number} of {len(groups)}", outcome.name, outcome.engine, flush=True)
    print("schemas:", dict(engines))
    print(f"{'sampler':14} {'budget refused':>15} {'ended':>8} {'not whole or invalid':>21}")
    for name, tally in totals.items():
        bad = len(tally.troubles)
        print(f"{name:14} {tally.num_refused:15} {tally.num_ended:8} {bad:21}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--schemas", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    arguments = parser.parse_args()
    measure(read_groups(arguments.file, limit=arguments.schemas), arguments.jobs)


if __name__ == "__main__":
    main()
