"""Servers of contenders as real processes: started, asked in rounds, ended."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import orjson
import pytest

from bench.http_client import Served
from bench.peers import works
from bench.peers.check import events_of, tokens_of
from bench.peers.completions import (
    PATH,
    WrongAnswer,
    check_usage,
    complete_all,
    completion_body,
    json_schema,
)
from bench.peers.contender import Contender
from bench.peers.rounds import figure_rows, run_work
from bench.peers.server import DidNotStart, Server, idle_share
from bench.peers.works import COLD, DECODE, WARM

LIMIT_S = 60.0
SERVE_FILES = (
    "import http.server, subprocess, sys\n"
    "handler, port = http.server.SimpleHTTPRequestHandler, int(sys.argv[1])\n"
    "{extra}\n"
    "http.server.test(handler, port=port, bind='127.0.0.1')"
)  # answers "/", and takes no POST


def counting(gather_s: float = 0.0, *gate: str) -> Contender:
    def command(port: int) -> list[str]:
        return [sys.executable, "-m", "tests.counting_server", str(port), str(gather_s), *gate]

    return Contender(name="counting", engine="test", command=command)


def running(code: str, *, ready_path: str = "/health") -> Contender:
    """A contender that is a Python program; it finds the port in its first argument."""

    def command(port: int) -> list[str]:
        return [sys.executable, "-c", code, str(port)]

    return Contender(name="program", engine="test", command=command, ready_path=ready_path)


@pytest.fixture(params=[0.0, 0.01])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with Server(counting(request.param), tmp_path, LIMIT_S) as up:
        yield up


def test_a_stream_has_the_tokens_of_its_own_request(server: Server) -> None:
    body = completion_body(server.endpoint, [5, 6, 7], 4)
    request = Request(server.endpoint.url + PATH, orjson.dumps(body))
    with urlopen(request, timeout=LIMIT_S) as answer:
        assert tokens_of(events_of(answer)) == [8, 9, 10, 11]


def test_a_stream_under_a_schema_may_end_early(server: Server) -> None:
    body = {**completion_body(server.endpoint, [5, 6, 7], 8), **json_schema({"type": "object"})}
    for _ in range(2):  # the connection is good for another one
        request = Request(server.endpoint.url + PATH, orjson.dumps(body))
        with urlopen(request, timeout=LIMIT_S) as answer:
            events = events_of(answer)
        assert tokens_of(events) == [8, 9, 10, 11]
        assert events[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": 4}


def test_many_streams_at_once_are_all_served_in_full(server: Server) -> None:
    prompts = [[100 * index, 1] for index in range(12)]
    served = asyncio.run(complete_all(server.endpoint, prompts, 20))
    assert len(served) == 12
    assert all(0 < stream.ttft_s <= stream.end_s for stream in served)


def test_a_token_goes_out_before_the_next_is_computed(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with Server(counting(0.0, str(gate)), tmp_path, LIMIT_S) as server:
        body = completion_body(server.endpoint, [5, 6, 7], 3)
        request = Request(server.endpoint.url + PATH, orjson.dumps(body))
        with urlopen(request, timeout=LIMIT_S) as answer:
            assert b'"token_ids": [8]' in answer.readline()
            gate.touch()
            assert tokens_of(events_of(answer)) == [9, 10]


def test_a_burst_is_no_stream(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async def burst(*_: object) -> list[Served]:
        return [Served(ttft_s=0.9, end_s=1.0, last={})]

    monkeypatch.setattr(works, "complete_all", burst)
    results = run_work("decode", [server], rounds=1, seed=1, settle_s=0)
    assert "half of the time" in str(results.failures["counting"])


def test_one_connection_takes_one_request_after_the_other(server: Server) -> None:
    for length in (3, 5):
        [served] = asyncio.run(complete_all(server.endpoint, [[1] * length], 2))
        assert served.last["usage"] == {"prompt_tokens": length, "completion_tokens": 2}


@pytest.mark.parametrize(
    "event",
    [
        {"usage": {"prompt_tokens": 4, "completion_tokens": 2}},  # a BOS was put in front
        {"usage": {"prompt_tokens": 3, "completion_tokens": 1}},  # an early end
        {"usage": None},
        {},
    ],
)
def test_another_count_of_tokens_is_a_wrong_answer(event: dict[str, object]) -> None:
    with pytest.raises(WrongAnswer, match="asked for 2 tokens after 3"):
        check_usage(event, 3, 2)


def test_rounds_take_the_figures_of_all_that_serve(server: Server, tmp_path: Path) -> None:
    files = running(SERVE_FILES.format(extra=""), ready_path="/")
    with Server(files, tmp_path, LIMIT_S) as other:
        results = run_work("decode", [server, other], rounds=2, seed=1, settle_s=0)
    assert len(results.figures[DECODE]["counting"]) == 2
    assert list(results.failures) == ["program"]
    rows = {row.name: row for row in figure_rows("decode", results)}
    assert rows[f"{DECODE}: counting"].note.startswith("2 runs")
    assert rows[f"{DECODE}: program served"].met == "no"


def test_a_shared_prefix_has_a_cold_and_a_warm_figure(server: Server) -> None:
    results = run_work("shared", [server], rounds=1, seed=1, settle_s=0)
    assert set(results.figures) == {COLD, WARM}
    assert all(len(samples["counting"]) == 1 for samples in results.figures.values())


def test_a_missing_peer_names_the_command_that_sets_it_up(tmp_path: Path) -> None:
    contender = Contender(
        name="x", engine="x", command=lambda port: [], needs=(tmp_path / "absent",)
    )
    with pytest.raises(DidNotStart, match=r"absent: run `make peers`"):
        Server(contender, tmp_path, LIMIT_S).__enter__()


def test_a_program_that_ends_is_told_with_its_last_words(tmp_path: Path) -> None:
    ends = running("import sys; print('no such model\\n'); sys.exit(3)")
    with pytest.raises(DidNotStart, match="status 3: no such model"):
        Server(ends, tmp_path, LIMIT_S).__enter__()


def test_a_program_that_does_not_listen_in_time_is_ended(tmp_path: Path) -> None:
    waits = running("import signal; print('waiting', flush=True); signal.pause()")
    server = Server(waits, tmp_path, 0.0)
    with pytest.raises(DidNotStart, match="not ready after 0 s"):
        server.__enter__()
    with pytest.raises(ProcessLookupError):
        os.killpg(server.pid, 0)


def test_what_a_server_has_started_ends_with_it(tmp_path: Path) -> None:
    fifo = tmp_path / "held"
    os.mkfifo(fifo)
    child = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f"held = open({str(fifo)!r}, 'w'); signal.pause()"
    )
    start = f"subprocess.Popen([sys.executable, '-c', {child!r}])"
    parent = running(SERVE_FILES.format(extra=start), ready_path="/")
    with Server(parent, tmp_path, LIMIT_S) as server:
        held = fifo.open("rb")  # waits for the child
    with held:
        assert held.read() == b""  # ends when nobody holds the other side
    with pytest.raises(URLError):
        urlopen(server.endpoint.url, timeout=LIMIT_S)


def test_processor_time_of_the_whole_group_is_counted(tmp_path: Path) -> None:
    with Server(counting(), tmp_path, LIMIT_S) as server:
        assert server.cpu_seconds() > 0  # its imports
        assert idle_share([server], 0.01)["counting"] >= 0
