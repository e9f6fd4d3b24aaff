"""How `select` decides: pure functions from log-probabilities to the index of a choice.

The methods are those of SGLang's `select`. A token whose log-probability is None (the first
one of an empty prompt) has nothing to be judged by, so it is left out of every mean; 0.0 is
a value like any other.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..errors import InvalidRequest
from ..messages import TokenLogprob

Logprobs = Sequence[TokenLogprob]


class Decision(msgspec.Struct, frozen=True):
    """The index of the chosen option, and one score for each: larger is better."""

    index: int
    scores: tuple[float, ...]


def token_length_normalized(options: Sequence[Logprobs]) -> Decision:
    """The option with the largest mean log-probability; the first one wins a tie."""
    return _largest([_mean(_known(option)) for option in options])


def greedy_token_selection(options: Sequence[Logprobs]) -> Decision:
    """Token by token, keep the options whose token is the most likely among those left.

    Where an option is shorter than the longest one, its own mean stands for the tokens that
    it lacks. Of those that remain after the last token the first one wins. Scores are means.
    """
    rows = [_known(option) for option in options]
    means = [_mean(row) for row in rows]
    width = max(map(len, rows))
    table = [row + [mean] * (width - len(row)) for row, mean in zip(rows, means, strict=True)]
    left = list(range(len(table)))
    for column in range(width):
        best = max(table[row][column] for row in left)
        left = [row for row in left if table[row][column] == best]
    return Decision(left[0], tuple(means))


def unconditional_likelihood_normalized(
    options: Sequence[Logprobs], unconditional: Sequence[Logprobs]
) -> Decision:
    """The option whose tokens gain most from the prompt: mean of (with it - without it).

    Without a prompt the first token's log-probability is None and counts as 0.
    """
    return _largest(
        [
            _mean(
                [
                    token.logprob - (alone.logprob or 0.0)
                    for token, alone in zip(option, alone_option, strict=True)
                    if token.logprob is not None
                ]
            )
            for option, alone_option in zip(options, unconditional, strict=True)
        ]
    )


def _known(option: Logprobs) -> list[float]:
    return [token.logprob for token in option if token.logprob is not None]


def _mean(values: Sequence[float]) -> float:
    if not values:
        raise InvalidRequest(
            "select has nothing to judge a choice of one token by: put text before it",
            param="choices",
        )
    return sum(values) / len(values)


def _largest(scores: Sequence[float]) -> Decision:
    return Decision(max(range(len(scores)), key=scores.__getitem__), tuple(scores))
