"""What the radix cache saves: prefixes computed once, also while they are being computed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from espalier.runtime.messages import SchedulingHints
from tests.fakes import byte_vocabulary, tiny_config, tiny_weights
from tests.harness import Harness

CONFIG = tiny_config()
WEIGHTS = tiny_weights(CONFIG)


def prompt(length: int, salt: int = 0) -> list[int]:
    return [(i * 7 + i // 11 + salt) % 256 for i in range(length)]


@pytest.fixture(params=[True, False], ids=["overlap", "plain"])
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    harness = Harness(CONFIG, WEIGHTS, byte_vocabulary(), overlap=request.param, max_chunk_len=64)
    yield harness
    harness.close()


def computed(harness: Harness) -> int:
    return harness.scheduler.stats.num_computed_tokens


def test_the_second_of_two_prompts_takes_the_shared_part_from_the_cache(harness: Harness) -> None:
    shared = prompt(200)
    harness.submit([*shared, 1, 2], max_new_tokens=4)
    harness.run()
    second = harness.submit([*shared, 3, 4], max_new_tokens=4)
    harness.run()
    assert second.usage.cached_tokens == 200


def test_an_equal_prompt_computes_one_token(harness: Harness) -> None:
    harness.submit(prompt(100), max_new_tokens=1)
    harness.run()
    before = computed(harness)
    again = harness.submit(prompt(100), max_new_tokens=1)
    harness.run()
    assert computed(harness) - before == 1
    assert again.usage.cached_tokens == 99


@pytest.mark.parametrize("policy", ["lpm", "fcfs"])
@pytest.mark.parametrize("chunk", [16, 64, 512])
def test_equal_prompts_at_once_compute_one_prompt(policy: str, chunk: int) -> None:
    harness = Harness(CONFIG, WEIGHTS, byte_vocabulary(), policy=policy, max_chunk_len=chunk)
    outcomes = [harness.submit(prompt(300), max_new_tokens=1) for _ in range(8)]
    harness.run()
    assert computed(harness) == 300 + 7
    assert {tuple(o.ids) for o in outcomes} == {tuple(outcomes[0].ids)}
    harness.assert_drained()
    harness.close()


def test_requests_share_within_one_step(harness: Harness) -> None:
    for salt in range(3):
        harness.submit([*prompt(40), salt], max_new_tokens=1)
    harness.step()
    assert harness.scheduler.stats.num_forward_passes == 1
    assert computed(harness) == 41 + 1 + 1
    harness.run()


def test_the_next_turn_finds_prompt_and_answer(harness: Harness) -> None:
    first = harness.submit(prompt(50), max_new_tokens=20)
    harness.run()
    second = harness.submit([*prompt(50), *first.ids, 9, 9], max_new_tokens=2)
    harness.run()
    assert second.usage.cached_tokens >= 50 + 20 - 1


def test_the_next_turn_finds_them_at_once_even_with_a_step_in_flight() -> None:
    """The answer is in the tree when the client hears of its end, not a step later."""
    harness = Harness(CONFIG, WEIGHTS, byte_vocabulary(), overlap=True)
    first = harness.submit(prompt(50), max_new_tokens=20)
    other = harness.submit(prompt(30, salt=99), max_new_tokens=60)
    while not first.finals:
        harness.step()
    assert not other.finals
    second = harness.submit([*prompt(50), *first.ids, 9, 9], max_new_tokens=2)
    harness.run()
    assert second.usage.cached_tokens >= 50 + 20 - 1
    harness.close()


def test_namespaces_never_share(harness: Harness) -> None:
    harness.submit(prompt(80), namespace=("ab", "c"), max_new_tokens=1)
    harness.run()
    other = harness.submit(prompt(80), namespace=("a", "bc"), max_new_tokens=1)
    harness.run()
    assert other.usage.cached_tokens == 0
    same = harness.submit(prompt(80), namespace=("ab", "c"), max_new_tokens=1)
    harness.run()
    assert same.usage.cached_tokens == 79


def test_without_the_cache_every_prompt_is_computed_whole() -> None:
    harness = Harness(CONFIG, WEIGHTS, byte_vocabulary(), radix_cache=False)
    for _ in range(3):
        harness.submit(prompt(100), max_new_tokens=3)
    harness.run()
    assert computed(harness) == 3 * (100 + 2)
    assert harness.cache.num_cached == 0
    harness.assert_drained()
    harness.close()


def test_the_choices_of_one_request_share_its_prompt(harness: Harness) -> None:
    harness.submit(prompt(120), rid="n", choices=4, max_new_tokens=5, temperature=8.0)
    harness.run()
    assert computed(harness) <= 120 + 3 + 4 * 4
    assert len({tuple(harness.outcomes["n", c].ids) for c in range(4)}) == 4


def test_each_request_counts_as_one_use_of_its_path_however_often_it_locks_it() -> None:
    """A prompt in chunks matches again, and locks again, before each of them."""
    harness = Harness(CONFIG, WEIGHTS, byte_vocabulary(), max_chunk_len=16)
    for priority in (1, 4, -3):
        harness.submit(prompt(200), max_new_tokens=1, hints=SchedulingHints(priority=priority))
    harness.run()
    (node,) = (node for node in harness.cache.tree.nodes() if node.start == 0)
    assert (node.use_count, node.priority) == (3, 4)
    harness.close()


@pytest.mark.parametrize(
    ("eviction", "survivor"), [("lru", 1), ("lfu", 0), ("size", 0), ("priority", 2)]
)
def test_the_eviction_policy_says_which_prompt_stays(eviction: str, survivor: int) -> None:
    """0 was used most often, 1 most recently, 2 by a high priority; then comes a long prompt."""
    harness = Harness(CONFIG, WEIGHTS, byte_vocabulary(), eviction=eviction, pool_tokens=160)
    for which, priority in ((0, 0), (0, 0), (2, 9), (1, 0)):
        hints = SchedulingHints(priority=priority)
        harness.submit(prompt(40, which), max_new_tokens=1, hints=hints)
        harness.run()
    harness.submit(prompt(110, 77), max_new_tokens=1)
    harness.run()
    cached = [
        harness.cache.match_prefix((), np.array(prompt(40, which), np.int32)).length
        for which in range(3)
    ]
    assert [which for which in range(3) if cached[which] == 40] == [survivor]
    harness.close()
