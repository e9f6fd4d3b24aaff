"""The soak of a minute; and that its checks would notice what they are there for."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from bench.soak.answers import Outcome, Wrong, outcome
from bench.soak.calls import NATIVE, TEXT, Call
from bench.soak.figures import allowed, shortcomings
from bench.soak.ledger import Ledger
from bench.soak.processes import Sample, slope_of
from bench.soak.rounds import Soak
from bench.soak.wire import connected

WHOLE: dict[str, Any] = {
    "text": "ab",
    "output_ids": [1, 2],
    "meta_info": {
        "finish_reason": {"type": "length"},
        "completion_tokens": 2,
        "prompt_tokens": 3,
        "cached_tokens": 0,
    },
}
PART: dict[str, Any] = {
    **WHOLE,
    "output_ids": [1],
    "text": "a",
    "meta_info": {"finish_reason": None},
}
LOST = {"error": {"message": "the scheduler process ended; send the request again", "code": 503}}


@pytest.mark.alone
@pytest.mark.timeout(900)
def test_a_minute_of_everything() -> None:
    lines: list[str] = []
    with tempfile.TemporaryDirectory(prefix="soak-") as directory:  # pytest's are too long a path
        result = asyncio.run(Soak(60.0, 0, Path(directory), lines.append).run())
    assert shortcomings(result) == [], "\n".join(lines)
    assert result.ledger.counts["requests done"] > 50
    assert result.ledger.counts["probes compared"] > 20


# -- what the checks notice --------------------------------------------------------------------


def call(**fields: Any) -> Call:
    values: dict[str, Any] = {"path": NATIVE, "body": {"stream": True}, "count": 1, "rid": "a"}
    values.update(max_new=4)
    values.update(fields)
    return Call(**values)


def read(call: Call, body: bytes, *, status: int = 200, declared: int | None = None) -> Outcome:
    """What the checks make of this answer, from a server that says no more."""
    length = len(body) if declared is None else declared

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, length) + body)
        writer.close()

    async def run() -> Outcome:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server, connected(server.sockets[0].getsockname()) as connection:
            return await outcome(call, connection)

    return asyncio.run(run())


def stream(*events: Any, done: bool = True) -> bytes:
    data = [f"data: {json.dumps(event)}\n\n" for event in events]
    return "".join([*data, "data: [DONE]\n\n" if done else ""]).encode()


def test_answers_that_are_in_order() -> None:
    two = call(count=2)
    assert read(call(), stream(PART, WHOLE)) == Outcome("done", ids=(1, 2))
    assert read(two, stream({**WHOLE, "index": 1}, {**LOST, "index": 0})).kind == "lost"
    assert read(call(path=TEXT), stream(LOST, done=False)).kind == "lost"
    assert read(call(), json.dumps(LOST).encode(), status=503).kind == "lost"
    assert read(call(body={}), json.dumps(WHOLE).encode()) == Outcome("done", ids=(1, 2))
    assert read(call(), stream(PART), declared=1000).kind == "broken"
    assert read(call(), stream(aborted())).kind == "aborted"


def aborted() -> dict[str, Any]:
    return {**WHOLE, "meta_info": {**WHOLE["meta_info"], "finish_reason": {"type": "abort"}}}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (stream(WHOLE, done=False), "no end"),
        (stream(PART), "without a final message"),
        (stream(WHOLE, WHOLE), "behind the final message"),
        (stream(WHOLE) + stream(), "behind the last one"),
        (stream(WHOLE, PART), "does not go on from"),
        (stream({**PART, "text": "x"}, WHOLE), "does not go on from"),
        (stream({**WHOLE, "output_ids": [1]}), "2 tokens, but the ids"),
        (stream({**WHOLE, "output_ids": [1] * 5, "text": ""}), "but the ids"),
        (stream({"error": {"message": "odd", "code": 500}}), "500: odd"),
        (b"data: {", "within an event"),
        (b"{}\n\n", "not an event"),
    ],
)
def test_answers_that_are_not(answer: bytes, words: str) -> None:
    with pytest.raises(Wrong, match=words):
        read(call(), answer)


def test_a_stopped_output_follows_what_it_was_held_to() -> None:
    meta = {**WHOLE["meta_info"], "finish_reason": {"type": "stop"}}
    stopped = stream({**WHOLE, "meta_info": meta})
    assert read(call(pattern="[a-z]+", stops=("c",)), stopped).kind == "done"
    for held in (call(pattern="[0-9]+"), call(schema={}), call(stops=("b",))):
        with pytest.raises(Wrong):
            read(held, stopped)


@pytest.mark.parametrize("kind", ["lost", "broken", "aborted"])
def test_what_has_no_reason_is_wrong(kind: Any) -> None:
    ledger = Ledger()
    with ledger.outage("scheduler"):
        pass
    start = ledger.outages[0].end + 1.0
    ledger.settle(call(), Outcome(kind), start)
    assert len(ledger.wrongs) == 1
    with ledger.outage("tokenizer"):
        ledger.aborted_rids.add("a")
        ledger.settle(call(), Outcome(kind), start)
    assert len(ledger.wrongs) == 1


def test_a_probe_is_compared_with_its_first_outputs() -> None:
    ledger = Ledger()
    for ids in ((1, 2), (1, 2), (1, 3)):
        ledger.settle(call(probe=4), Outcome("done", ids=ids), 0.0)
    assert len(ledger.wrongs) == 1 and "(1, 3)" in ledger.wrongs[0]


def test_a_leak_is_steeper_than_what_settles() -> None:
    def series(mib_per_s: float, length_s: int) -> list[Sample]:
        return [Sample(float(t), "scheduler", 1, 100 + mib_per_s * t) for t in range(length_s)]

    for mib_per_s, is_leak in ((0.0, False), (0.1, True)):
        slope = slope_of(series(mib_per_s, 200))
        assert slope.mib_per_min == pytest.approx(60 * mib_per_s)
        assert (slope.mib_per_min > allowed(slope)) == is_leak
