"""Searches and answers end within their bounds."""

from __future__ import annotations

import pytest

from espalier.runtime.grammar.regular import (
    TooLarge,
    both,
    finite_strings,
    is_empty,
    negated,
    search_language,
    shortest,
    to_dfa,
    whole_language,
)


def test_a_search_is_bounded() -> None:
    hard = search_language("a[ab]{18}b")
    with pytest.raises(TooLarge):
        to_dfa(hard, budget=1000)
    with pytest.raises(TooLarge):
        is_empty(both(hard, negated(search_language("[ab]{20}"))), budget=1000)


def test_answers_are_bounded() -> None:
    huge = whole_language("(?:(?:a{1000}){1000}b){1000}")
    with pytest.raises(TooLarge):
        shortest(huge)
    with pytest.raises(TooLarge):
        finite_strings(huge, 10)
