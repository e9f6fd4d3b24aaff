"""Explicit deterministic automata: tables, trimming, minimisation; knows no expressions.

State 0 is the start. A symbol for which a state has no transition leads nowhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .charset import CharSet

Transitions = tuple[tuple[CharSet, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Dfa:
    """`transitions[state]` has pairwise disjoint sets. Every state but the start can still
    reach an accepting one. Compared by identity: tables are large."""

    transitions: tuple[Transitions, ...]
    accepting: frozenset[int]

    def next_state(self, state: int, symbol: int) -> int | None:
        for charset, target in self.transitions[state]:
            if symbol in charset:
                return target
        return None


def trimmed(transitions: Sequence[Mapping[int, CharSet]], accepting: Iterable[int]) -> Dfa:
    """The automaton whose state s goes to t by `transitions[s][t]`, without those states that
    can't be reached from state 0 or can't reach the end."""
    ends = frozenset(accepting)
    live = _live(transitions, ends)
    reached = [0]
    number = {0: 0}
    for state in reached:
        for target in transitions[state]:
            if target in live and target not in number:
                number[target] = len(reached)
                reached.append(target)
    return Dfa(
        tuple(
            tuple((charset, number[t]) for t, charset in transitions[state].items() if t in live)
            for state in reached
        ),
        frozenset(number[state] for state in ends if state in number),
    )


def _live(transitions: Sequence[Mapping[int, CharSet]], accepting: frozenset[int]) -> set[int]:
    sources: dict[int, list[int]] = {}
    for state, targets in enumerate(transitions):
        for target in targets:
            sources.setdefault(target, []).append(state)
    live = set(accepting)
    frontier = list(accepting)
    while frontier:
        for source in sources.get(frontier.pop(), ()):
            if source not in live:
                live.add(source)
                frontier.append(source)
    return live


def minimized(dfa: Dfa) -> Dfa:
    """The smallest automaton of the same language (Moore's refinement)."""
    block = [int(state in dfa.accepting) for state in range(len(dfa.transitions))]
    num_blocks = len(set(block))
    while True:
        signatures: dict[tuple[int, frozenset[tuple[int, CharSet]]], int] = {}
        refined = [
            signatures.setdefault(
                (block[state], frozenset(_by_block(dfa.transitions[state], block).items())),
                len(signatures),
            )
            for state in range(len(block))
        ]
        block = refined
        if len(signatures) == num_blocks:
            break
        num_blocks = len(signatures)
    # The start is the first state seen, so its block is number 0.
    merged: list[dict[int, CharSet]] = [{} for _ in range(num_blocks)]
    for state, transitions in enumerate(dfa.transitions):
        merged[block[state]] = _by_block(transitions, block)
    return trimmed(merged, {block[state] for state in dfa.accepting})


def _by_block(transitions: Transitions, block: Sequence[int]) -> dict[int, CharSet]:
    targets: dict[int, CharSet] = {}
    for charset, target in transitions:
        known = targets.get(block[target])
        targets[block[target]] = charset if known is None else known | charset
    return targets


def has_cycle(dfa: Dfa) -> bool:
    """Whether the language is infinite: every state lies on the way to an end."""
    indegree = [0] * len(dfa.transitions)
    for transitions in dfa.transitions:
        for _, target in transitions:
            indegree[target] += 1
    free = [state for state, count in enumerate(indegree) if count == 0]
    num_sorted = 0
    while free:
        num_sorted += 1
        for _, target in dfa.transitions[free.pop()]:
            indegree[target] -= 1
            if indegree[target] == 0:
                free.append(target)
    return num_sorted < len(dfa.transitions)
