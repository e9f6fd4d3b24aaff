"""Constrained requests in the scheduler: their grammar decides where they end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from espalier.runtime.errors import InvalidRequest, Overloaded, RequestFailed
from espalier.runtime.grammar.guide import CompiledGrammar
from espalier.runtime.messages import Choice, Constraint, Ebnf, JsonSchema, Regex
from tests.fakes import EOS, byte_vocabulary, tiny_config, tiny_weights
from tests.harness import Harness
from tests.local_grammars import LocalGrammars, byte_engines, byte_grammars, byte_jumper

CONFIG = tiny_config()
WEIGHTS = tiny_weights(CONFIG)


class PendingGrammars(LocalGrammars):
    """Leaves it to the test what comes of what was asked for."""

    def __init__(self) -> None:
        super().__init__(byte_engines())
        self.asked: list[Future[CompiledGrammar]] = []

    def compile(self, constraint: Constraint) -> Future[CompiledGrammar]:
        self.asked.append(Future())
        return self.asked[-1]


@pytest.fixture(params=["overlap", "plain", "overlap, jumps", "plain, jumps"])
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    harness = Harness(
        CONFIG,
        WEIGHTS,
        byte_vocabulary(),
        grammars=byte_grammars(),
        jumper=byte_jumper() if "jumps" in request.param else None,
        overlap="overlap" in request.param,
    )
    yield harness
    harness.close()


@pytest.mark.parametrize(
    "sampling",
    [{"ignore_eos": False}, {"ignore_eos": True}, {"ignore_eos": False, "min_new_tokens": 10}],
)
def test_the_stop_token_of_a_grammar_is_no_text_and_is_not_kept(
    harness: Harness, sampling: dict[str, Any]
) -> None:
    outcome = harness.submit([1, 2, 3], constraint=Regex("abc"), max_new_tokens=20, **sampling)
    harness.run()
    assert bytes(outcome.ids[:3]) == b"abc" and outcome.ids[3:] == [EOS]
    final = outcome.finals[0]
    assert outcome.finish.kind == "stop" and outcome.finish.matched == EOS
    assert final.num_kept_tokens == 3 and final.num_text_bytes == 3


def test_a_stop_string_inside_constrained_output_still_ends_it(harness: Harness) -> None:
    outcome = harness.submit([1], constraint=Regex("abcdef"), max_new_tokens=20, stop=("cd",))
    harness.run()
    assert outcome.finish.matched == "cd"
    assert outcome.finals[0].num_text_bytes == 2


def test_a_grammar_that_does_not_compile_ends_its_request_alone(harness: Harness) -> None:
    bad = harness.submit([1], constraint=Regex("("), max_new_tokens=5)
    good = harness.submit([1], constraint=Choice(("yes", "no")), max_new_tokens=5)
    plain = harness.submit([1], max_new_tokens=5)
    harness.run()
    assert bad.finish.kind == "error" and bad.finish.bad_request
    assert bytes(good.ids[:-1]) in (b"yes", b"no")
    assert plain.finish.kind == "length"


def test_an_abort_while_the_grammar_compiles(harness: Harness) -> None:
    outcome = harness.submit([1], rid="x", constraint=Regex("[a-z]{1,40}"), max_new_tokens=5)
    harness.abort("x")
    harness.run()
    assert outcome.finish.kind == "abort"
    harness.assert_drained()


def test_an_abort_gives_the_compilation_up() -> None:
    grammars = PendingGrammars()
    harness = Harness(CONFIG, WEIGHTS, byte_vocabulary(), grammars=grammars)
    outcome = harness.submit([1], rid="x", constraint=Regex("a"), max_new_tokens=5)
    harness.step()
    assert not grammars.asked[0].done()
    harness.abort("x")
    harness.step()
    assert grammars.asked[0].cancelled() and outcome.finish.kind == "abort"
    harness.run()
    harness.assert_drained()
    harness.close()


@pytest.mark.parametrize(
    ("error", "is_bad", "retry_after_s"),
    [
        (InvalidRequest("no such grammar"), True, None),
        (Overloaded("busy", 5.0), False, 5.0),
        (RequestFailed("the compiler does not start"), False, None),
    ],
    ids=["invalid", "overloaded", "failed"],
)
def test_whose_fault_it_is_that_there_is_no_grammar(
    error: Exception, is_bad: bool, retry_after_s: float | None
) -> None:
    grammars = PendingGrammars()
    harness = Harness(CONFIG, WEIGHTS, byte_vocabulary(), grammars=grammars)
    outcome = harness.submit([1], constraint=Regex("a"), max_new_tokens=5)
    harness.step()
    grammars.asked[0].set_exception(error)
    harness.run()
    finish = outcome.finish
    assert finish.kind == "error" and finish.message == str(error)
    assert (finish.bad_request, finish.retry_after_s) == (is_bad, retry_after_s)
    harness.close()


def test_a_grammar_that_leads_nowhere_ends_its_request_alone(harness: Harness) -> None:
    """Also in the step that is launched before anybody knows that there is no token."""
    plain = harness.submit([1], max_new_tokens=8)
    lost = harness.submit([2], constraint=Ebnf('root ::= "a" x\nx ::= x'), max_new_tokens=8)
    harness.run()
    assert lost.ids == [ord("a")]
    assert lost.finish.kind == "error" and lost.finish.bad_request
    assert plain.finish.kind == "length" and len(plain.ids) == 8
    assert harness.scheduler.stats.num_failed_steps == 0
    harness.assert_drained()


def test_bans_that_leave_no_token_are_a_bad_request(harness: Harness) -> None:
    everything = tuple(range(260))
    plain = harness.submit([1], max_new_tokens=4)
    lost = harness.submit([2], stop_token_ids=everything, min_new_tokens=1, max_new_tokens=4)
    harness.run()
    assert lost.ids == [] and lost.finish.kind == "error" and lost.finish.bad_request
    assert plain.finish.kind == "length"
    assert harness.scheduler.stats.num_failed_steps == 0
    harness.assert_drained()


def test_thousands_of_listed_values(harness: Harness) -> None:
    values = [f"{number * 7919:x}" for number in range(2500)]
    constraint = JsonSchema(json.dumps({"enum": values}))
    outcome = harness.submit([1], constraint=constraint, max_new_tokens=12)
    harness.run()
    assert outcome.finish.kind == "stop"
    assert json.loads(bytes(outcome.ids[:-1])) in values
