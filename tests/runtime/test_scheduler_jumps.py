"""Tokens that constraints force, taken without sampling: the same output in fewer passes, under
any schedule. Over bytes, of which every text has one spelling; and over some with merges."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from espalier.runtime.grammar.engines import Engines
from espalier.runtime.grammar.jumping import Jumper
from espalier.runtime.grammar.vocabulary import Vocabulary as GrammarVocabulary
from espalier.runtime.messages import Choice, Constraint, Ebnf, JsonSchema, LogprobOptions, Regex
from espalier.runtime.scheduler.sampling_rows import Vocabulary
from tests.fakes import EOS, byte_tokens, byte_vocabulary, tiny_config, tiny_weights
from tests.harness import Harness, Outcome
from tests.local_grammars import LocalGrammars, byte_grammars, byte_jumper
from tests.native_kernels import NATIVE, held_by, needs_native
from tests.runtime.test_scheduler_faults import FailingRunner

CONFIG = tiny_config()
WEIGHTS = tiny_weights(CONFIG)
RECORD = JsonSchema(
    json.dumps(
        {
            "type": "object",
            "properties": {
                "population": {"type": "integer", "minimum": 0, "maximum": 9_999_999},
                "kind": {"enum": ["orderId", "orderName"]},
                "open": {"type": "boolean"},
            },
            "required": ["population", "kind", "open"],
        }
    )
)
CONSTRAINTS: list[Constraint] = [
    RECORD,
    Regex("abc[0-9]{2}def(gh|ij)"),
    Regex("a?bcd(e|f)*"),
    Choice(("alpha beta", "alpha gamma", "alp")),
    Ebnf('root ::= "begin " [a-c]{1,3} " end" | "begun"'),
    JsonSchema('{"const":{"a":[1,2,3]}}'),
]


@pytest.fixture(params=["torch", NATIVE[0]], scope="module")
def weights(request: pytest.FixtureRequest) -> Any:
    return held_by(request.param, WEIGHTS, CONFIG)


@pytest.fixture(params=[True, False], ids=["overlap", "plain"])
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    with_jumps = harness_with(WEIGHTS, byte_jumper(), overlap=request.param)
    yield with_jumps
    with_jumps.close()


def harness_with(weights: Any, jumper: Jumper | None, **options: Any) -> Harness:
    vocabulary = byte_vocabulary()
    return Harness(CONFIG, weights, vocabulary, grammars=byte_grammars(), jumper=jumper, **options)


def text_of(outcome: Outcome) -> bytes:
    return bytes(token_id for token_id in outcome.ids if token_id < 256)


def passes(harness: Harness) -> int:
    return harness.scheduler.stats.num_forward_passes


# -- what is forced --------------------------------------------------------------------------------


def test_what_is_forced_takes_no_passes_of_its_own(harness: Harness) -> None:
    outcome = harness.submit([1, 2], constraint=Regex("abc[xy]defg"), max_new_tokens=50)
    harness.run()
    assert text_of(outcome) in (b"abcxdefg", b"abcydefg")
    assert outcome.finish.kind == "stop" and outcome.finish.matched == EOS
    assert outcome.usage.completion_tokens == 9 and outcome.usage.forced_tokens == 8
    assert passes(harness) <= 2  # the prompt with "abc"; in flight with overlap, one for nothing
    assert harness.scheduler.stats.num_forced_tokens == 8
    harness.assert_drained()


def test_what_is_all_forced_takes_none(harness: Harness) -> None:
    outcome = harness.submit([1], constraint=JsonSchema('{"const":"abc"}'), max_new_tokens=50)
    other = harness.submit([1], constraint=Regex("abc"), max_new_tokens=50, stop=("b",))
    harness.run()
    assert text_of(outcome) == b'"abc"' and outcome.ids[-1] == EOS
    assert other.ids == [*b"ab"] and other.finish.matched == "b"
    assert other.finals[0].num_text_bytes == 1
    assert passes(harness) == 0
    harness.assert_drained()


def test_their_log_probabilities_are_null(harness: Harness) -> None:
    outcome = harness.submit(
        [1, 2],
        constraint=Regex("ab[xy]cd[xy]"),
        max_new_tokens=50,
        logprobs=LogprobOptions(top=2, prompt_start=0),
    )
    harness.run()
    assert [entry.token_id for entry in outcome.logprobs] == outcome.ids
    known = [entry.logprob is not None for entry in outcome.logprobs]
    assert known == [False, False, True, False, False, True, False]
    assert outcome.prompt_logprobs is not None and len(outcome.prompt_logprobs) == 2


def test_an_opening_is_told_with_the_first_token_or_with_the_end(harness: Harness) -> None:
    first = harness.submit([1] * 300, rid="x", constraint=Regex("abc[xy]d"), max_new_tokens=50)
    harness.step(wait=True)
    harness.step()
    assert not first.ids
    harness.abort("x")
    harness.run()
    assert text_of(first) == b"abc" and first.usage.completion_tokens == 3
    assert first.finish.kind == "abort" and first.finals[0].num_text_bytes == 3
    harness.assert_drained()


@pytest.mark.parametrize("most", range(1, 12))
def test_the_limit_holds(harness: Harness, most: int) -> None:
    """Closed in time where that can be; else cut off, and that is said."""
    whole = harness.submit([1], constraint=Regex("abc[xy]*z"), max_new_tokens=most)
    own = harness.submit([1], constraint=Ebnf('root ::= "abcdefgh" [xy]'), max_new_tokens=most)
    harness.run()
    if most < 5:
        assert whole.finish.kind == "error" and "5 tokens" in whole.finish.message
    else:
        assert text_of(whole).startswith(b"abc") and text_of(whole).endswith(b"z")
    assert len(own.ids) == min(most, 10)
    assert own.finish.incomplete == (most < 9)


# -- under any schedule ----------------------------------------------------------------------------


def crowd(harness: Harness, seed: int) -> list[Outcome]:
    rng = random.Random(seed)
    outcomes: list[Outcome] = []
    for _ in range(12):
        constraint = rng.choice([*CONSTRAINTS, None])
        outcome = harness.submit(
            [rng.randrange(200) for _ in range(rng.choice((1, 5, 40)))],
            constraint=constraint,
            max_new_tokens=rng.choice((64, 90)),
            temperature=rng.choice((0.0, 1.0)),
            seed=rng.randrange(100),
            choices=rng.choice((1, 1, 3)),
            frequency_penalty=rng.choice((0.0, 0.5)),
        )
        outcomes.append(outcome)
        for _ in range(rng.randrange(4)):
            harness.step()
    harness.run()
    harness.assert_drained()
    return outcomes


@pytest.mark.parametrize("kernels", NATIVE[:1])
@pytest.mark.parametrize("seed", range(4))
def test_jumps_and_schedules_change_no_token(kernels: Any, seed: int) -> None:
    weights = held_by(kernels, WEIGHTS, CONFIG)
    expected: list[list[int]] | None = None
    for jumper, options in (
        (None, {}),
        (byte_jumper(), {}),
        (byte_jumper(), {"overlap": False}),
        (byte_jumper(), {"max_step_tokens": 7, "max_chunk_len": 3, "max_running_requests": 5}),
        (byte_jumper(), {"pool_tokens": 135, "new_token_reserve": 0.0, "max_chunk_len": 16}),
        (byte_jumper(), {"radix_cache": False, "max_overlap_tokens": 0}),
    ):
        harness = harness_with(weights, jumper, **options)
        outcomes = crowd(harness, seed)
        found = [outcome.ids for outcome in outcomes]
        forced = harness.scheduler.stats.num_forced_tokens
        if "pool_tokens" in options:
            assert harness.scheduler.stats.num_retractions
        harness.close()
        assert expected is None or found == expected, (options, jumper)
        assert bool(forced) == (jumper is not None)
        expected = found


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "plain"])
@pytest.mark.parametrize("kernels", NATIVE[:1])
def test_a_failed_step_takes_no_jump_back(kernels: Any, overlap: bool) -> None:
    """What was forced is written into the table again; and nobody's token is lost."""
    weights = held_by(kernels, WEIGHTS, CONFIG)

    def load(at: int | None) -> tuple[list[list[int]], int]:
        harness = harness_with(weights, byte_jumper(), overlap=overlap, max_chunk_len=8)
        if at is not None:
            harness.wrap_runner(FailingRunner(harness.runner, at=at))
        for index, constraint in enumerate([*CONSTRAINTS, RECORD]):
            harness.submit([7] * (1 + 6 * index), constraint=constraint, max_new_tokens=80)
        harness.run()
        assert harness.scheduler.stats.num_failed_steps == (at is not None)
        harness.assert_drained()
        harness.close()
        return [outcome.ids for outcome in harness.outcomes.values()], passes(harness)

    expected, num_passes = load(None)
    assert num_passes > 10
    for at in range(num_passes):
        assert load(at)[0] == expected, at


def test_aborts_and_ends_amid_jumps_leave_the_books_whole() -> None:
    for seed in range(6):
        rng = random.Random(seed)
        harness = harness_with(WEIGHTS, byte_jumper(), pool_tokens=200, new_token_reserve=0.0)
        for index in range(20):
            harness.submit(
                [1] * rng.randrange(1, 30),
                rid=f"x{index}",
                constraint=rng.choice(CONSTRAINTS),
                max_new_tokens=64,
                stop=rng.choice(((), ("order",), ("c",), (" e",))),
            )
            for _ in range(rng.randrange(3)):
                harness.step()
            if rng.random() < 0.4:
                harness.abort(f"x{rng.randrange(index + 1)}")
        harness.run()
        for outcome in harness.outcomes.values():
            assert outcome.usage.completion_tokens == len(outcome.ids)
            assert outcome.usage.forced_tokens <= len(outcome.ids)
        harness.assert_drained()
        harness.close()


# -- with merges -----------------------------------------------------------------------------------

PAIRS = [
    *(('"', ","), ('",', '"'), ('"', ":"), ('":', '"'), ("o", "r"), ("or", "d"), ("e", "r")),
    *(("ord", "er"), ("order", "I"), ("k", "i"), ("n", "d"), ("ki", "nd"), ("i", "t"), ("{", '"')),
]
MERGED = [*byte_tokens(), *((left + right).encode() for left, right in PAIRS)]
IDS = {text: token_id for token_id, text in enumerate(MERGED) if not 256 <= token_id < 260}
ITEM = JsonSchema(
    json.dumps(
        {
            "type": "object",
            "properties": {
                "item": {"type": "string", "maxLength": 5},
                "kind": {"enum": ["orderId", "orderName"]},
                "note": {"type": "string", "maxLength": 3},
            },
            "required": ["item", "kind", "note"],
        }
    )
)


def merged(text: str) -> list[int]:
    """As byte-pair encoding reads it."""
    parts = [bytes((byte,)) for byte in text.encode()]
    for left, right in PAIRS:
        place, pair = 0, (left.encode(), right.encode())
        while place + 1 < len(parts):
            if (parts[place], parts[place + 1]) == pair:
                parts[place : place + 2] = [parts[place] + parts[place + 1]]
            place += 1
    return [IDS[part] for part in parts]


def merging_harness(*, jumps: bool = True, **options: Any) -> Harness:
    config = replace(CONFIG, vocab_size=len(MERGED))

    def visible(token_id: int) -> bytes:
        return b"" if 256 <= token_id < 260 else MERGED[token_id]

    vocabulary = Vocabulary(len(MERGED), len(MERGED), (EOS,), visible)
    controls = tuple(range(256, 260))
    engines = Engines(GrammarVocabulary(tuple(MERGED), controls, (EOS,), len(MERGED)))
    jumper = Jumper(merged, MERGED, control_ids=controls, vocab_width=len(MERGED))
    weights = held_by("float32", tiny_weights(config), config)
    return Harness(
        config,
        weights,
        vocabulary,
        grammars=LocalGrammars(engines),
        jumper=jumper if jumps else None,
        **options,
    )


def items(harness: Harness, count: int = 10) -> list[Outcome]:
    return [
        harness.submit(
            [7] * (1 + 5 * (index % 4)),
            constraint=ITEM,
            max_new_tokens=90,
            temperature=1.0,
            seed=index,
            logprobs=LogprobOptions() if index % 2 else None,
        )
        for index in range(count)
    ]


def written(outcome: Outcome) -> str:
    return b"".join(MERGED[i] for i in outcome.ids if i != EOS).decode()


@needs_native
def test_the_last_token_is_respelled_under_any_schedule() -> None:
    """A quote that closes a text is one token with the comma and the quote that must follow."""
    expected: list[list[int]] | None = None
    schedules: list[dict[str, Any]] = [
        {},
        {"overlap": False},
        {"max_step_tokens": 9, "max_chunk_len": 4, "max_running_requests": 6},
        {"pool_tokens": 190, "new_token_reserve": 0.0},
    ]
    for options in schedules:
        harness = merging_harness(**options)
        outcomes = items(harness)
        harness.run()
        harness.assert_drained()
        harness.close()
        found = [outcome.ids for outcome in outcomes]
        assert expected is None or found == expected, options
        expected = found
        structure = [IDS[b'","'], *merged("kind"), IDS[b'":"']]
        num_respelled = 0
        for outcome in outcomes:
            assert set(json.loads(written(outcome))) == {"item", "kind", "note"}
            places = range(len(outcome.ids))
            num_respelled += any(
                outcome.ids[at : at + len(structure)] == structure for at in places
            )
            if outcome.request.logprobs is not None:
                by_id = zip(outcome.ids, outcome.logprobs, strict=True)
                assert all(entry.token_id == token_id for token_id, entry in by_id)
                nulls = [at for at, entry in enumerate(outcome.logprobs) if entry.logprob is None]
                assert set(outcome.forced) <= set(nulls)  # a respelled token has none either
        assert num_respelled > len(outcomes) / 2


@needs_native
def test_a_respelled_token_s_text_may_hold_a_stop() -> None:
    for overlap in (True, False):
        harness = merging_harness(overlap=overlap)
        outcomes = [
            harness.submit([seed], constraint=ITEM, max_new_tokens=90, seed=seed, stop=(',"',))
            for seed in range(6)
        ]
        harness.run()
        for outcome in outcomes:
            final = outcome.finals[0]
            kept = b"".join(MERGED[i] for i in outcome.ids[: final.num_kept_tokens])
            text = written(outcome).encode()[: final.num_text_bytes]
            assert outcome.finish.matched == ',"' and text.endswith(b'"')
            assert text.startswith(kept) and not text.startswith(kept + b'",')
        harness.assert_drained()
        harness.close()


@needs_native
@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "plain"])
def test_a_failed_step_takes_no_respelling_back(overlap: bool) -> None:
    def load(at: int | None) -> tuple[list[list[int]], int]:
        harness = merging_harness(overlap=overlap, max_chunk_len=8)
        if at is not None:
            harness.wrap_runner(FailingRunner(harness.runner, at=at))
        outcomes = items(harness, 4)
        harness.run()
        assert harness.scheduler.stats.num_failed_steps == (at is not None)
        harness.assert_drained()
        harness.close()
        return [outcome.ids for outcome in outcomes], passes(harness)

    expected, num_passes = load(None)
    for at in range(num_passes - 1):
        assert load(at)[0] == expected, at
