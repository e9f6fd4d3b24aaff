"""From answers to outcomes: of each instance, of each schema, of each keyword."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from bench.schemas.data import Group
from bench.schemas.judging import Judged


class Outcome(Enum):
    """From the worst to the best: a schema has the worst outcome of its instances."""

    ACCEPTED_INVALID = "accepted invalid"
    LATE = "over the deadline"
    NOT_COMPILED = "not compiled"
    REFUSED_VALID = "refused valid"
    RIGHT = "right"


_RANK = {outcome: rank for rank, outcome in enumerate(Outcome)}


def outcomes(group: Group, judged: Judged) -> list[Outcome]:
    """Of each instance. To refuse a schema that has no valid instance is right."""
    num = len(group.instances)
    if judged.is_late:
        return [Outcome.LATE] * num
    if judged.refusal is not None:
        has_valid = any(instance.is_valid for instance in group.instances)
        return [Outcome.NOT_COMPILED if has_valid else Outcome.RIGHT] * num
    return [
        _outcome(instance.is_valid, text is not None)
        for instance, text in zip(group.instances, judged.accepted, strict=True)
    ]


def _outcome(is_valid: bool, is_accepted: bool) -> Outcome:
    if is_valid == is_accepted:
        return Outcome.RIGHT
    return Outcome.ACCEPTED_INVALID if is_accepted else Outcome.REFUSED_VALID


def worst(found: Sequence[Outcome]) -> Outcome:
    return min(found, key=_RANK.__getitem__, default=Outcome.RIGHT)


@dataclass(slots=True)
class Tally:
    """Outcomes by keyword and in all: of the suite's instances, or of schemas met in the wild."""

    total: Counter[Outcome] = field(default_factory=lambda: Counter[Outcome]())
    by_keyword: defaultdict[str, Counter[Outcome]] = field(
        default_factory=lambda: defaultdict(Counter[Outcome])
    )

    def add(self, group: Group, found: Sequence[Outcome]) -> None:
        counted = found if group.is_suite else [worst(found)]
        self.total.update(counted)
        for keyword in group.keywords:
            self.by_keyword[keyword].update(counted)
