"""The last message of a request under a schema: it waits for the verdict, and always comes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from espalier.runtime.grammar.validation import Verdict, validate_json
from espalier.runtime.messages import Ebnf, FinishReason, GrammarReport, JsonSchema, Regex
from espalier.runtime.scheduler.control import AbortAll, Shutdown
from tests.fakes import EOS, byte_vocabulary, tiny_config, tiny_weights
from tests.harness import Harness, Outcome
from tests.local_grammars import LocalGrammars, byte_engines, byte_grammars

CONFIG = tiny_config()
WEIGHTS = tiny_weights(CONFIG)
BOOLS = JsonSchema('{"type":"array","items":{"type":"boolean"},"minItems":2,"maxItems":2}')


class PendingVerdicts(LocalGrammars):
    """Leaves it to the test when texts are found to be what."""

    def __init__(self) -> None:
        super().__init__(byte_engines())
        self.asked: list[tuple[str, str]] = []
        self.verdicts: list[Future[Verdict]] = []

    def check(self, schema: str, text: str) -> Future[Verdict]:
        self.asked.append((schema, text))
        self.verdicts.append(Future())
        return self.verdicts[-1]


@pytest.fixture(params=[True, False], ids=["overlap", "plain"])
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    harness = Harness(
        CONFIG, WEIGHTS, byte_vocabulary(), grammars=byte_grammars(), overlap=request.param
    )
    yield harness
    harness.close()


class Held:
    """A harness in which one request has ended, and its text is being checked."""

    def __init__(self) -> None:
        self.grammars = PendingVerdicts()
        self.harness = Harness(CONFIG, WEIGHTS, byte_vocabulary(), grammars=self.grammars)
        self.outcome = self.harness.submit([1, 2], rid="x", constraint=BOOLS, max_new_tokens=30)
        while not self.grammars.asked:
            self.harness.step()
        self.harness.step()

    @property
    def stats(self) -> tuple[dict[str, int], int]:
        stats = self.harness.scheduler.stats
        found = {name: count for name, count in stats.num_structured.items() if count}
        return {str(name): count for name, count in found.items()}, stats.num_violations


@pytest.fixture
def held() -> Iterator[Held]:
    made = Held()
    yield made
    made.harness.close()


def report_of(outcome: Outcome) -> GrammarReport | None:
    assert len(outcome.finals) == 1
    return outcome.finals[0].grammar


def test_whole_text_is_checked(harness: Harness) -> None:
    outcome = harness.submit([1, 2], constraint=BOOLS, max_new_tokens=30)
    harness.run()
    assert validate_json(BOOLS.schema, bytes(outcome.ids[:-1]).decode()).valid
    report = report_of(outcome)
    assert report is not None
    assert (report.valid, report.trouble) == (True, "")
    assert report.engine in ("xgrammar", "llguidance")
    assert harness.scheduler.stats.num_structured["valid"] == 1
    assert harness.scheduler.stats.num_violations == 0


def test_a_schema_that_is_not_enforced_is_refused_unless_the_caller_lets_it_go(
    harness: Harness,
) -> None:
    """The grammar allows what the schema does not; the verdict tells."""
    schema = json.dumps(
        {
            "type": "array",
            "items": {"type": "string", "pattern": "^a*$", "maxLength": 100},
            "minItems": 2,
            "maxItems": 2,
            "uniqueItems": True,
        }
    )
    refused = harness.submit([1], constraint=JsonSchema(schema), max_new_tokens=60)
    let_go = harness.submit(
        [1],
        constraint=JsonSchema(schema, unenforced="validate"),
        max_new_tokens=60,
        logit_bias={ord('"'): 100.0, ord(","): 100.0, ord("]"): 100.0},
    )
    harness.run()
    assert refused.finish.bad_request and "uniqueItems" in refused.finish.message
    assert bytes(let_go.ids[:-1]) == b'["",""]'
    report = report_of(let_go)
    assert report is not None and report.valid is False and "uniqueItems" in report.trouble
    assert report.notes[0] == "#: uniqueItems is not enforced"
    stats = harness.scheduler.stats
    assert stats.num_structured["invalid"] == 1 and stats.num_violations == 0


def test_open_objects_are_a_grammar_of_their_own(harness: Harness) -> None:
    schema = '{"type":"object","properties":{"a":{"type":"null"}},"minProperties":1}'
    bias = {ord(char): 100.0 for char in '{"b:1}'} | {ord("a"): -100.0}
    closed, opened = (
        harness.submit([1], constraint=asked, max_new_tokens=200, logit_bias=bias)
        for asked in (JsonSchema(schema), JsonSchema(schema, open_objects=True))
    )
    harness.run()
    assert json.loads(bytes(closed.ids[:-1])) == {"a": None}
    assert "a" not in json.loads(bytes(opened.ids[:-1]))
    for outcome in (closed, opened):
        report = report_of(outcome)
        assert report is not None and report.valid


@pytest.mark.parametrize("constraint", [Regex("ab"), Ebnf('root ::= "ab"')], ids=["regex", "ebnf"])
def test_what_has_no_schema_has_no_verdict(harness: Harness, constraint: Regex | Ebnf) -> None:
    outcome = harness.submit([1], constraint=constraint, max_new_tokens=5)
    plain = harness.submit([1], max_new_tokens=5)
    harness.run()
    report = report_of(outcome)
    assert report is not None and (report.valid, report.trouble) == (None, "")
    assert report_of(plain) is None
    assert not any(harness.scheduler.stats.num_structured.values())


@pytest.mark.parametrize(
    "stop", [{"stop": (",",)}, {"stop_token_ids": (ord("]"),)}], ids=["string", "token"]
)
def test_a_stop_of_the_caller_s_cuts_the_text_off(harness: Harness, stop: dict[str, Any]) -> None:
    outcome = harness.submit([1], constraint=BOOLS, max_new_tokens=30, **stop)
    harness.run()
    assert outcome.finish.kind == "stop"
    report = report_of(outcome)
    assert report is not None and report.valid is None and "cut off" in report.trouble


def test_an_aborted_text_is_not_checked(harness: Harness) -> None:
    outcome = harness.submit([1], rid="x", constraint=BOOLS, max_new_tokens=30)
    while not outcome.ids:
        harness.step()
    harness.abort("x")
    harness.run()
    report = report_of(outcome)
    assert outcome.finish.kind == "abort"
    assert report is not None and report.valid is None and "cut off" in report.trouble


def test_only_the_last_message_waits(held: Held) -> None:
    """What the request held is free; the others go on to their ends; a verdict wakes the loop."""
    harness = held.harness
    [(schema, text)] = held.grammars.asked
    assert schema == BOOLS.schema and validate_json(schema, text).valid
    assert text == bytes(held.outcome.ids).decode() and not held.outcome.finals
    assert harness.scheduler.idle
    harness.assert_drained()
    other = harness.submit([3], max_new_tokens=5)
    while not other.finals:
        harness.step()
    assert not held.outcome.finals
    held.grammars.verdicts[0].set_result(Verdict(True, ""))
    harness.step(wait=True)
    assert held.outcome.finish == FinishReason(kind="stop", matched=EOS)
    assert held.outcome.ids[-1] == EOS and held.outcome.finals[0].usage is not None
    assert held.stats == ({"valid": 1}, 0)


def test_a_broken_promise_is_counted(held: Held, caplog: pytest.LogCaptureFixture) -> None:
    held.grammars.verdicts[0].set_result(Verdict(False, "/0: it is odd"))
    held.harness.run()
    report = report_of(held.outcome)
    assert report is not None and (report.valid, report.trouble) == (False, "/0: it is odd")
    assert held.stats == ({"invalid": 1}, 1)
    assert "it is odd" in caplog.text


ENDS: dict[str, Callable[[Harness], None]] = {
    "abort": lambda harness: harness.abort("x"),
    "abort of all": lambda harness: harness.scheduler.inbox.put(AbortAll("gone")),
    "shutdown": lambda harness: harness.scheduler.inbox.put(Shutdown()),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("verdict_comes", [True, False])
def test_an_end_while_it_is_checked_sends_the_message_once(
    held: Held, end: Callable[[Harness], None], verdict_comes: bool
) -> None:
    """It has ended well: only the verdict is missing."""
    end(held.harness)
    held.harness.step(wait=True)
    if verdict_comes:
        held.grammars.verdicts[0].set_result(Verdict(True, ""))
    held.harness.step()
    report = report_of(held.outcome)
    assert held.outcome.finish.kind == "stop"
    assert report is not None and report.valid is None and "aborted" in report.trouble
    assert held.stats == ({"unknown": 1}, 0)


def test_the_loop_ends_while_a_text_is_checked(held: Held) -> None:
    held.harness.scheduler.inbox.put(Shutdown())
    held.harness.scheduler.run()
    assert held.outcome.finish.kind == "stop"


def test_an_abort_of_another_leaves_it_waiting(held: Held) -> None:
    held.harness.abort("y")
    held.harness.step(wait=True)
    assert not held.outcome.finals
    held.grammars.verdicts[0].set_result(Verdict(None, "it took too long"))
    held.harness.run()
    report = report_of(held.outcome)
    assert report is not None and (report.valid, report.trouble) == (None, "it took too long")


def test_a_check_that_fails_keeps_no_message(held: Held) -> None:
    held.grammars.verdicts[0].set_exception(RuntimeError("a bug"))
    held.harness.run()
    report = report_of(held.outcome)
    assert report is not None and report.valid is None and "a bug" in report.trouble


def test_a_rebuild_keeps_no_message(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    """The books turn out wrong while a text is checked."""
    harness = held.harness
    harness.max_rebuilds = 1
    other = harness.submit([3], max_new_tokens=5)

    def broken(*_: object) -> None:
        monkeypatch.undo()
        raise AssertionError("the books are wrong")

    monkeypatch.setattr(harness.scheduler._planner, "plan", broken)  # pyright: ignore[reportPrivateUsage]
    harness.run()
    assert held.outcome.finish.kind == "stop" and len(other.finals) == 1
