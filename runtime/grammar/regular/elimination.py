"""Automata back to plain expressions, where these stay small."""

from __future__ import annotations

from .construct import EPSILON, NOTHING, alt, chars, repeat, seq
from .dfa import Dfa
from .errors import TooLarge
from .nodes import Alt, Regex, Repeat, parts

_Edges = dict[int, dict[int, Regex]]  # source -> target -> what leads from one to the other


def expression_of(dfa: Dfa, max_terms: int) -> Regex:
    """The language of the automaton as a plain expression; `TooLarge` if it grows beyond
    `max_terms` terms on the way, counting each as often as it would be written out."""
    num_states = len(dfa.transitions)
    start, end = num_states, num_states + 1
    edges: _Edges = {state: {} for state in range(num_states)}
    for state, transitions in enumerate(dfa.transitions):
        for charset, target in transitions:
            edges[state][target] = _plus(edges[state].get(target), chars(charset))
        if state in dfa.accepting:
            edges[state][end] = EPSILON
    edges[start] = {0: EPSILON}
    remaining = set(range(num_states))
    while remaining:
        state = min(remaining, key=lambda candidate: _cost(edges, candidate))
        remaining.remove(state)
        _eliminate(edges, state, max_terms)
    return edges[start].get(end, NOTHING)


def _cost(edges: _Edges, state: int) -> tuple[int, int]:
    """How many paths eliminating the state would add; the number breaks ties."""
    num_sources = sum(state in targets for source, targets in edges.items() if source != state)
    return num_sources * len(edges[state].keys() - {state}), state


def _eliminate(edges: _Edges, state: int, max_terms: int) -> None:
    """Replace each path through the state by an edge."""
    outgoing = edges.pop(state)
    loop = repeat(outgoing.pop(state, EPSILON))
    for targets in edges.values():
        incoming = targets.pop(state, None)
        if incoming is None:
            continue
        for target, outgo in outgoing.items():
            targets[target] = _plus(targets.get(target), seq(incoming, loop, outgo))
            if num_terms(targets[target]) > max_terms:
                raise TooLarge(f"an expression of more than {max_terms} terms")


def _plus(known: Regex | None, option: Regex) -> Regex:
    return option if known is None else alt(known, option)


def num_terms(regex: Regex) -> int:
    """Terms of a plain expression, each counted as often as it would be written out."""
    sizes: dict[Regex, int] = {}

    def size(term: Regex) -> int:
        found = sizes.get(term)
        if found is None:
            found = sizes[term] = 1 + sum(map(size, _children(term)))
        return found

    return size(regex)


def _children(regex: Regex) -> tuple[Regex, ...]:
    match regex:
        case Repeat(body=body):
            return (body,)
        case Alt(members=members):
            return members
        case _:
            links = tuple(parts(regex))
            return links if len(links) > 1 else ()
