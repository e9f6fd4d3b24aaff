"""JSON Schemas and instances: what is enforced right, by us and by bare engines side by side.

    python -m bench.schemas --data SUITE.jsonl REAL.jsonl --json bench/out/schemas.json

Each contender compiles each schema, in a process of its own with a deadline, and is asked for
each instance in all the spellings that a grammar may have narrowed it to
(bench/schemas/spellings.py). The test suite's core counts pairs, schemas met in the wild count as
a whole; a schema without a valid instance may be refused. `--only KEYWORD`, `--limit N` and
`--contenders` make it shorter; `--failures FILE` lists whatever is not right, with the text.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from rich.console import Console

from bench.report import Row, publish
from bench.schemas.contenders import CONTENDERS
from bench.schemas.counting import Outcome, Tally, outcomes
from bench.schemas.data import Group, read_groups
from bench.schemas.figures import (
    Tallies,
    keyword_rows,
    keyword_table,
    pair_rows,
    schema_rows,
    time_rows,
)
from bench.schemas.judging import Judge, Judged


@dataclass(slots=True)
class Results:
    """Everything that was found, by contender."""

    suite: defaultdict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    real: defaultdict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    compile_s: defaultdict[str, dict[str, float]] = field(
        default_factory=lambda: defaultdict(dict[str, float])
    )
    failures: list[dict[str, str | None]] = field(default_factory=lambda: [])

    def add(self, name: str, group: Group, judged: Judged) -> None:
        found = outcomes(group, judged)
        (self.suite if group.is_suite else self.real)[name].add(group, found)
        if judged.compile_s is not None:
            self.compile_s[name][group.name] = judged.compile_s
        for index, outcome in enumerate(found):
            if outcome is not Outcome.RIGHT:
                self.failures.append(_failure(name, group, judged, index, outcome))


def _failure(
    name: str, group: Group, judged: Judged, index: int, outcome: Outcome
) -> dict[str, str | None]:
    """One line of `--failures`: what was accepted, or what should have been and why it wasn't."""
    instance = group.instances[index]
    return {
        "contender": name,
        "outcome": outcome.value,
        "group": group.name,
        "instance": instance.description,
        "text": judged.accepted[index] if judged.accepted else None,
        "given": instance.text,
        "reason": judged.refusal,
        "schema": group.schema,
    }


def measure(groups: list[Group], judges: list[Judge]) -> Results:
    """All contenders on one group, then on the next."""
    results, started = Results(), monotonic()
    try:
        for index, group in enumerate(groups):
            for judge in judges:
                results.add(judge.name, group, judge.judge(group))
            if sys.stderr.isatty() or index % 100 == 0:
                line = f"{index + 1:,} of {len(groups):,}, {monotonic() - started:.0f} s"
                print(f"{line}  {group.name[:60]}", file=sys.stderr, flush=True)
    finally:
        for judge in judges:
            judge.close()
    return results


def total_rows(results: Results, *, is_whole: bool) -> Iterator[Row]:
    yield from pair_rows(results.suite, is_whole=is_whole)
    yield from schema_rows(results.real, is_whole=is_whole)
    yield from time_rows(results.compile_s)


def report(results: Results, *, is_whole: bool, json_file: Path | None) -> None:
    """The tables; in the file, the keywords are rows as well."""
    details: list[Row] = []
    kinds: dict[str, Tallies] = {"suite": results.suite, "real schemas": results.real}
    for kind, tallies in kinds.items():
        if tallies:
            Console(width=150).print(keyword_table(kind, tallies))
            details += keyword_rows(kind, tallies)
    rows = list(total_rows(results, is_whole=is_whole))
    publish("bench.schemas", rows, json_file, unprinted=details)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, nargs="+", required=True, metavar="FILE")
    parser.add_argument("--only", metavar="KEYWORD", help="schemas that are about it")
    parser.add_argument(
        "--limit", type=int, metavar="N", help="schemas of each file, from all over it"
    )
    parser.add_argument("--deadline", type=float, default=5.0, help="seconds for one compilation")
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), metavar="NAME")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows there")
    parser.add_argument("--failures", type=Path, metavar="FILE", help="list what is not right")
    args = parser.parse_args()
    groups = [group for file in args.data for group in read_groups(file, args.only, args.limit)]
    names = args.contenders or list(CONTENDERS)
    judges = [Judge(name, CONTENDERS[name], args.deadline) for name in names]
    results = measure(groups, judges)
    is_whole = args.only is None and args.limit is None
    report(results, is_whole=is_whole, json_file=args.json)
    if args.failures is not None:
        worst_first = sorted(results.failures, key=lambda each: each["outcome"] or "")
        args.failures.write_text("".join(json.dumps(each) + "\n" for each in worst_first))


if __name__ == "__main__":
    main()
