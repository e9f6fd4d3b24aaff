"""The sampling noise: a pure function of its key, and statistically what it claims to be."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.kernels.noise import gumbel_noise
from tests.significance import chi_square_z, correlation_z, kolmogorov_distance

MASK = 2**64 - 1
keys = st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(0, 127), st.integers(0, 8192))


def splitmix(word: int) -> int:
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & MASK
    return word ^ (word >> 31)


def expected_noise(seed: int, choice: int, position: int, token_id: int) -> float:
    key = 0
    for word in (seed, choice, position):
        key = splitmix(((key + 0x9E3779B97F4A7C15) ^ word) & MASK)
    bits = splitmix((key + token_id * 0x9E3779B97F4A7C15) & MASK)
    uniform = ((bits >> 12) + 0.5) / 2**52
    return float(-np.log(-np.log(uniform)))


def noise(seed: int, choice: int, position: int, ids: list[int]) -> npt.NDArray[np.float32]:
    return np.asarray(gumbel_noise(seed, choice, position, torch.tensor(ids)))


@given(keys, st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=40))
@settings(max_examples=100, deadline=None)
def test_it_is_this_function_of_its_key(key: tuple[int, int, int], ids: list[int]) -> None:
    expected = [expected_noise(*key, token_id) for token_id in ids]
    np.testing.assert_allclose(noise(*key, ids), expected, rtol=1e-5, atol=1e-6)


@given(keys, st.lists(st.integers(0, 2000), min_size=1, max_size=20))
@settings(max_examples=50, deadline=None)
def test_a_token_s_noise_does_not_depend_on_its_company(
    key: tuple[int, int, int], ids: list[int]
) -> None:
    whole = noise(*key, list(range(2001)))
    np.testing.assert_array_equal(noise(*key, ids), whole[ids])


def uniforms(seed: int, choice: int, position: int, count: int) -> npt.NDArray[np.float64]:
    gumbel = noise(seed, choice, position, list(range(count))).astype(np.float64)
    return np.exp(-np.exp(-gumbel))


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63)])
def test_tokens_are_uniform_and_uncorrelated(seed: int) -> None:
    values = uniforms(seed, 0, 0, 49_152)
    assert np.isfinite(values).all()
    assert kolmogorov_distance(values) < 1.95
    for lag in (1, 2, 32, 1024):
        assert abs(correlation_z(values[lag:], values[:-lag])) < 4


@pytest.mark.parametrize("vary", ["seed", "choice", "position"])
def test_neighbouring_keys_are_uniform_and_independent(vary: str) -> None:
    def row(step: int) -> npt.NDArray[np.float64]:
        key = {"seed": 5, "choice": 0, "position": 9}
        key[vary] += step
        return uniforms(**key, count=64)

    rows = np.stack([row(step) for step in range(1024)])
    assert kolmogorov_distance(rows[:, 7]) < 1.95
    assert abs(correlation_z(rows[1:].ravel(), rows[:-1].ravel())) < 4
    cells = np.histogram2d(rows[1:, 7], rows[:-1, 7], bins=8, range=[(0, 1), (0, 1)])[0]
    assert abs(chi_square_z(cells, np.full((8, 8), cells.sum() / 64))) < 4


def test_the_largest_and_smallest_values_are_finite() -> None:
    values = noise(3, 0, 0, list(range(300_000)))
    assert np.isfinite(values).all() and values.max() > 12 and values.min() < -2


def test_seed_choice_and_position_are_not_interchangeable() -> None:
    drawn = {float(noise(*key, [11])[0]) for key in ((1, 2, 3), (1, 3, 2), (2, 1, 3), (3, 2, 1))}
    assert len(drawn) == 4
