"""How select decides, on numbers worked out by hand."""

from __future__ import annotations

import pytest

from espalier.runtime.errors import InvalidRequest
from espalier.runtime.messages import TokenLogprob
from espalier.runtime.programs.choices import (
    greedy_token_selection,
    token_length_normalized,
    unconditional_likelihood_normalized,
)


def option(*logprobs: float | None) -> list[TokenLogprob]:
    return [TokenLogprob(index, logprob) for index, logprob in enumerate(logprobs)]


def test_length_normalized_takes_the_largest_mean() -> None:
    # Sums are -3, -2, -4; means -1.0, -2.0, -4.0.
    decision = token_length_normalized([option(-1, -1, -1), option(-2), option(-4)])
    assert (decision.index, decision.scores) == (0, (-1.0, -2.0, -4.0))


def test_a_logprob_of_exactly_zero_counts_as_a_token() -> None:
    # Were the zero dropped, the first mean would be -3.0 and the second option would win.
    decision = token_length_normalized([option(0.0, -3.0), option(-2.0, -2.0)])
    assert (decision.index, decision.scores) == (0, (-1.5, -2.0))


def test_a_token_without_logprob_is_left_out_of_the_mean() -> None:
    decision = token_length_normalized([option(None, -3.0), option(None, -1.0, -3.0)])
    assert (decision.index, decision.scores) == (1, (-3.0, -2.0))


def test_first_option_wins_a_tie() -> None:
    assert token_length_normalized([option(-1), option(-1, -1)]).index == 0


def test_greedy_follows_the_best_token_not_the_best_mean() -> None:
    # Column 0 keeps options 0 and 1 (-0.5); column 1 keeps option 1.
    decision = greedy_token_selection([option(-0.5, -9), option(-0.5, -8), option(-0.6, -0.1)])
    assert (decision.index, decision.scores) == (1, (-4.75, -4.25, -0.35))


def test_greedy_extends_a_short_option_by_its_own_mean() -> None:
    # Column 1: option 0 is extended by -1.0, which beats -1.5 though -1.0 is no token of it.
    assert greedy_token_selection([option(-1.0), option(-1.0, -1.5)]).index == 0
    assert greedy_token_selection([option(-1.0), option(-1.0, -0.5)]).index == 1


def test_greedy_takes_the_first_of_those_that_remain() -> None:
    assert greedy_token_selection([option(-2), option(-1, -1), option(-1)]).index == 1


def test_greedy_without_a_first_logprob_looks_at_the_second() -> None:
    assert greedy_token_selection([option(None, -3), option(None, -1)]).index == 1


def test_unconditional_normalized_takes_the_largest_gain() -> None:
    # Gains: (-1 - 0) and (-1 - -3) -> mean 0.5; (-0.5 - 0) and (-0.5 - -0.5) -> mean -0.25.
    decision = unconditional_likelihood_normalized(
        [option(-1, -1), option(-0.5, -0.5)], [option(None, -3), option(None, -0.5)]
    )
    assert (decision.index, decision.scores) == (0, (0.5, -0.25))


def test_nothing_to_judge_by_is_an_error() -> None:
    with pytest.raises(InvalidRequest, match="put text before it"):
        token_length_normalized([option(None), option(None, -1)])
