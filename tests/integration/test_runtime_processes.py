"""The processes of the runtime: killed under load, left by their clients, drained and ended."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from espalier.runtime.errors import LaunchError, ModelError
from espalier.runtime.processes import supervisor
from espalier.runtime.processes.launcher import Launcher
from tests.integration.servers import (
    DEADLINE_S,
    NUM_PROCESSES,
    descendants,
    events,
    generate_body,
    is_alive,
    is_idle,
    is_ready,
    launcher,
    seconds_until,
    serve,
    stats,
)

pytestmark = pytest.mark.alone

RECOVERY_S = 5.0
ERROR_S = 2.0
FREED_S = 1.0


@pytest.fixture(scope="module")
def server() -> Iterator[Launcher]:
    with launcher() as running:
        yield running


# -- killed ------------------------------------------------------------------------------------


class Load:
    """Open requests, streaming and not, and how each of them ended."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.first_tokens = 0
        self.ends: list[tuple[str, float]] = []
        """What each request came to, and when."""

    async def run(self, num_streams: int, num_plain: int) -> None:
        async with httpx.AsyncClient(base_url=self._url, timeout=DEADLINE_S) as client:
            streams = [self._stream(client) for _ in range(num_streams)]
            await asyncio.gather(*streams, *(self._plain(client) for _ in range(num_plain)))

    async def _stream(self, client: httpx.AsyncClient) -> None:
        last: object = "nothing"
        try:
            body = generate_body(1000, stream=True)
            async with client.stream("POST", "/generate", json=body) as response:
                async for event in events(response):
                    self.first_tokens += last == "nothing"
                    last = event or last
        except httpx.TransportError:
            last = {"error": "connection"}
        kind = "error" if isinstance(last, dict) and "error" in last else f"odd end: {last}"
        self.ends.append((kind, time.monotonic()))

    async def _plain(self, client: httpx.AsyncClient) -> None:
        try:
            response = await client.post("/generate", json=generate_body(1000))
        except httpx.TransportError:
            kind = "error"
        else:
            is_clear = (
                response.status_code == 503 and "ended" in response.json()["error"]["message"]
            )
            kind = "error" if is_clear else f"odd end: {response.status_code} {response.text}"
        self.ends.append((kind, time.monotonic()))


@pytest.mark.parametrize("name", ["scheduler", "detokenizer", "tokenizer"])
def test_a_killed_process_ends_what_is_open_and_is_replaced(server: Launcher, name: str) -> None:
    victim = server.pids[name]
    survivors = {n: pid for n, pid in server.pids.items() if n != name}

    async def kill_under_load() -> tuple[Load, float]:
        load = Load(server.url)
        running = asyncio.create_task(load.run(num_streams=8, num_plain=4))
        while load.first_tokens < 8:
            await asyncio.sleep(0.02)
        killed_at = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        await asyncio.wait_for(running, DEADLINE_S)
        return load, killed_at

    load, killed_at = asyncio.run(kill_under_load())
    assert [kind for kind, _ in load.ends] == ["error"] * 12
    assert max(at for _, at in load.ends) - killed_at < ERROR_S
    seconds_until(lambda: is_ready(server.url), RECOVERY_S - (time.monotonic() - killed_at))
    assert server.pids[name] != victim
    assert {n: pid for n, pid in server.pids.items() if n != name} == survivors
    answer = httpx.post(f"{server.url}/generate", json=generate_body(4), timeout=DEADLINE_S)
    assert answer.json()["meta_info"]["completion_tokens"] == 4
    seconds_until(lambda: is_idle(server.url))  # whatever survived has let go of what was open


def test_a_killed_fork_server_is_replaced_with_its_scheduler(server: Launcher) -> None:
    old = server.pids
    os.kill(old["fork_server"], signal.SIGKILL)
    seconds_until(lambda: not is_alive(old["scheduler"]))
    seconds_until(lambda: server.pids.get("scheduler", old["scheduler"]) != old["scheduler"])
    seconds_until(lambda: is_ready(server.url))
    answer = httpx.post(f"{server.url}/generate", json=generate_body(4), timeout=DEADLINE_S)
    assert answer.json()["meta_info"]["completion_tokens"] == 4


def test_while_it_recovers_requests_are_refused_at_once(server: Launcher) -> None:
    os.kill(server.pids["fork_server"], signal.SIGKILL)
    seconds_until(lambda: not is_ready(server.url))
    refused = httpx.post(f"{server.url}/generate", json=generate_body(4), timeout=DEADLINE_S)
    assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
    assert "recovers" in refused.json()["error"]["message"]
    assert httpx.get(f"{server.url}/health", timeout=DEADLINE_S).status_code == 200
    seconds_until(lambda: is_ready(server.url))


def test_a_silent_process_is_replaced() -> None:
    with launcher(watchdog_timeout_s=2.0) as server:
        for name in ("detokenizer", "scheduler", "tokenizer"):
            victim = server.pids[name]
            os.kill(victim, signal.SIGSTOP)
            seconds_until(lambda name=name, victim=victim: server.pids.get(name, victim) != victim)  # type: ignore[misc]
            seconds_until(lambda: is_ready(server.url))


# -- left by the client ------------------------------------------------------------------------


def leave_when(server: Launcher, body: dict[str, object], num_events: int | None) -> None:
    """Send a request and drop the connection after so many events; None: before any answer."""

    async def run() -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=DEADLINE_S) as client:
            before = stats(server.url)
            if num_events is None:
                task = asyncio.create_task(client.post("/generate", json=body))
                while stats(server.url)["num_running"] + stats(server.url)["num_waiting"] == 0:
                    assert not task.done(), task.result().text
                    await asyncio.sleep(0.02)
                task.cancel()
            else:
                async with client.stream("POST", "/generate", json=body) as response:
                    assert response.status_code == 200
                    seen = 0
                    async for _ in events(response):
                        seen += 1
                        if seen == num_events:
                            break
            assert before["pool_tokens"] == stats(server.url)["pool_tokens"]

    asyncio.run(run())


@pytest.mark.parametrize("num_events", [None, 1, 5])
@pytest.mark.parametrize("choices", [1, 3])
def test_a_disconnect_frees_the_slots(
    server: Launcher, num_events: int | None, choices: int
) -> None:
    body = generate_body(1500, stream=num_events is not None)
    body["sampling_params"] = {"max_new_tokens": 1500, "ignore_eos": True, "n": choices}
    leave_when(server, body, num_events)
    assert seconds_until(lambda: is_idle(server.url)) < FREED_S


def test_a_disconnect_during_a_long_prefill_frees_the_slots(server: Launcher) -> None:
    body = generate_body(4, stream=False) | {"text": "a long river and " * 1500}
    leave_when(server, body, None)
    assert seconds_until(lambda: is_idle(server.url)) < FREED_S  # the step under way ends first


def test_disconnects_free_queued_requests(server: Launcher) -> None:
    """Sixteen rows run, the others wait; all are left at once."""

    async def run() -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=DEADLINE_S) as client:
            tasks = [
                asyncio.create_task(client.post("/generate", json=generate_body(400)))
                for _ in range(24)
            ]
            while stats(server.url)["num_waiting"] < 8:
                await asyncio.sleep(0.02)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run())
    assert seconds_until(lambda: is_idle(server.url)) < FREED_S


def test_a_disconnect_while_the_grammar_compiles(server: Launcher) -> None:
    slow = "(([a-z]{1,60}[0-9]{1,60}){1,60})"
    body = generate_body(8) | {"sampling_params": {"max_new_tokens": 8, "regex": slow}}
    leave_when(server, body, None)
    assert seconds_until(lambda: is_idle(server.url)) < FREED_S


@pytest.mark.parametrize("stream", [True, False])
def test_abort_by_exact_name(server: Launcher, stream: bool) -> None:
    async def run() -> tuple[dict[str, object], dict[str, object]]:
        async with httpx.AsyncClient(base_url=server.url, timeout=DEADLINE_S) as client:
            other = asyncio.create_task(client.post("/generate", json=generate_body(40, rid="ab")))
            one = asyncio.create_task(
                client.post("/generate", json=generate_body(1500, rid="a", stream=stream))
            )
            while stats(server.url)["num_running"] < 2:
                await asyncio.sleep(0.02)
            assert (await client.post("/abort_request", json={"rid": "a"})).status_code == 200
            text = (await one).text
            if stream:
                text = text.strip().split("\n\n")[-2].removeprefix("data: ")
            return httpx.Response(200, text=text).json(), (await other).json()

    aborted, other = asyncio.run(run())
    assert aborted["meta_info"]["finish_reason"]["type"] == "abort"  # type: ignore[index]
    assert other["meta_info"]["finish_reason"]["type"] == "length"  # type: ignore[index]
    seconds_until(lambda: is_idle(server.url))


# -- many ---------------------------------------------------------------------------------------


def test_two_hundred_streams_at_once(server: Launcher) -> None:
    async def one(client: httpx.AsyncClient, index: int) -> tuple[int, ...]:
        body = generate_body(4, stream=True) | {"text": f"{index % 4} and"}
        last: dict[str, list[int]] = {}
        async with client.stream("POST", "/generate", json=body) as response:
            async for event in events(response):
                if event is not None:
                    last = event
        return tuple(last["output_ids"])

    async def run() -> list[tuple[int, ...]]:
        limits = httpx.Limits(max_connections=None)
        timeout = httpx.Timeout(DEADLINE_S * 4)
        async with httpx.AsyncClient(base_url=server.url, timeout=timeout, limits=limits) as client:
            return await asyncio.gather(*(one(client, i) for i in range(200)))

    outputs = asyncio.run(run())
    assert all(len(ids) == 4 for ids in outputs)
    assert len(set(outputs)) <= 4  # one for each prompt
    seconds_until(lambda: is_idle(server.url))


def test_too_many_requests_are_refused_and_the_rest_served() -> None:
    async def run(url: str) -> list[int]:
        async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_S) as client:
            posts = [client.post("/generate", json=generate_body(8)) for _ in range(12)]
            return [response.status_code for response in await asyncio.gather(*posts)]

    with launcher(max_queued_requests=4) as server:
        codes = asyncio.run(run(server.url))
    assert codes.count(200) >= 4 and codes.count(503) == 12 - codes.count(200) > 0


# -- what the processes are made of ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["tokenizer", "detokenizer"])
def test_the_text_processes_are_small_and_have_no_torch(server: Launcher, name: str) -> None:
    process = Path(f"/proc/{server.pids[name]}")
    assert "libtorch" not in (process / "maps").read_text()
    peak = re.search(r"VmHWM:\s+(\d+) kB", (process / "status").read_text())
    assert peak and int(peak[1]) < 250 * 1024


def test_sockets_are_private(server: Launcher) -> None:
    directory = server.directory
    assert directory.stat().st_mode & 0o777 == 0o700
    assert (directory / "scheduler.news").is_socket()


# -- the end ------------------------------------------------------------------------------------


def directories() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("espalier-*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_leaves_nothing(number: signal.Signals) -> None:
    before = directories()
    process, url = serve()
    family = descendants(process.pid)
    assert len(family) == NUM_PROCESSES and len(directories() - before) == 1

    async def stream_while_stopping() -> tuple[int, int]:
        async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_S) as client:
            count, refused = 0, 0
            body = generate_body(60, stream=True)
            async with client.stream("POST", "/generate", json=body) as response:
                async for event in events(response):
                    if event is None:
                        break
                    count = event["meta_info"]["completion_tokens"]
                    if count == 3:
                        process.send_signal(number)
                    if count == 30:
                        refused = (await client.post("/generate", json=body)).status_code
            return count, refused

    assert asyncio.run(stream_while_stopping()) == (60, 503)
    assert process.wait(DEADLINE_S) == 0
    assert not [pid for pid in family if is_alive(pid)]
    assert directories() <= before
    assert not is_ready(url)


def test_a_second_signal_stops_now() -> None:
    process, url = serve()
    family = descendants(process.pid)

    async def run() -> object:
        async with httpx.AsyncClient(base_url=url, timeout=DEADLINE_S) as client:
            last: object = None
            body = generate_body(4000, stream=True)
            async with client.stream("POST", "/generate", json=body) as response:
                seen = 0
                async for event in events(response):
                    seen += 1
                    last = event or last
                    if seen in (3, 10):
                        process.send_signal(signal.SIGINT)
            return last

    last = asyncio.run(run())
    assert isinstance(last, dict) and last["meta_info"]["finish_reason"]["type"] == "abort"
    assert process.wait(DEADLINE_S) == 0
    assert not [pid for pid in family if is_alive(pid)]


def test_a_killed_launcher_leaves_no_orphans_and_the_next_one_cleans_up() -> None:
    before = directories()
    process, _ = serve()
    family = descendants(process.pid)
    process.kill()
    process.wait()
    seconds_until(lambda: not [pid for pid in family if is_alive(pid)], 5.0)
    assert len(directories() - before) == 1
    launcher().close()
    assert directories() <= before


def test_a_launcher_killed_while_it_starts_leaves_no_orphans() -> None:
    process = subprocess.Popen([sys.executable, "-m", "espalier", "serve", "--port", "0"])
    seconds_until(lambda: len(descendants(process.pid)) == 3)
    family = descendants(process.pid)
    process.kill()
    process.wait()
    seconds_until(lambda: not [pid for pid in family if is_alive(pid)], 5.0)
    launcher().close()


# -- what can't start ------------------------------------------------------------------------------


def test_a_port_in_use_is_named(server: Launcher) -> None:
    port = int(server.url.rpartition(":")[2])
    with pytest.raises(LaunchError, match=f"port {port}.*in use"):
        launcher(port=port)


def test_a_process_that_speaks_another_protocol_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when the package was upgraded under a launcher that still runs."""
    before = directories()
    monkeypatch.setattr(supervisor, "PROTOCOL", "espalier/0")
    with pytest.raises(LaunchError, match="speaks espalier/1, not espalier/0"):
        launcher().start()
    assert directories() <= before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "no-such-model"}, "no-such-model"),
        ({"context_len": 9000}, "9000"),
    ],
)
def test_a_model_that_does_not_load_raises_and_leaves_nothing(
    options: dict[str, object], words: str
) -> None:
    before = directories()
    with pytest.raises(ModelError, match=words):
        launcher(**options).start()
    assert directories() <= before


def test_closing_twice_or_before_the_start_is_fine() -> None:
    before = directories()
    unused = launcher()
    unused.close()
    unused.close()
    assert directories() <= before
