"""Events of a real scheduler process, to a real subscriber, over its death."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import zmq

from espalier.runtime.errors import EspalierError
from espalier.runtime.ipc.to_subscribers import WIRE
from espalier.runtime.processes.launcher import Launcher
from tests.integration.servers import (
    DEADLINE_S,
    generate_body,
    is_ready,
    launcher,
    seconds_until,
    stats,
)
from tests.kv_followers import Follower

pytestmark = pytest.mark.alone

ROOT = Path(__file__).parents[2]


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/events"


@pytest.fixture
def server(endpoint: str) -> Iterator[Launcher]:
    with launcher(kv_events=endpoint) as running:
        yield running


def test_its_socket_goes_with_the_server(endpoint: str) -> None:
    path = Path(endpoint.removeprefix("ipc://"))
    with launcher(kv_events=endpoint) as server:
        assert path.is_socket()
        os.kill(server.pids["scheduler"], signal.SIGKILL)
        seconds_until(lambda: not is_ready(server.url))
        seconds_until(lambda: is_ready(server.url))
    assert not path.exists()


def ask(url: str) -> None:
    httpx.post(f"{url}/kv_events/snapshot", timeout=DEADLINE_S).raise_for_status()


def generate(url: str, salt: str) -> None:
    body = generate_body(8, cache_salt=salt)
    httpx.post(f"{url}/generate", json=body, timeout=DEADLINE_S).raise_for_status()


def num_cached(url: str) -> int:
    """Tokens in the tree of an idle server."""
    now = stats(url)
    return int(now["pool_tokens"] - now["free_tokens"])


def test_a_follower_knows_the_cache_and_gets_over_a_killed_scheduler(
    server: Launcher, endpoint: str
) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.SUB)
    socket.subscribe(b"")
    socket.connect(endpoint)
    follower = Follower(lambda: ask(server.url))

    def known() -> tuple[int, set[tuple[str, ...]]]:
        tokens = follower.tokens()
        return len(tokens), {namespace for namespace, _ in tokens}

    def follow(*salts: str) -> None:
        """Until the follower has as many tokens as the server, and of these salts."""
        expected = num_cached(server.url), {("cache_salt", salt) for salt in salts}
        deadline = time.monotonic() + DEADLINE_S
        while not follower.in_sync or known() != expected:
            assert time.monotonic() < deadline, f"{known()}, not {expected}"
            if socket.poll(200):
                follower.take(WIRE.decode(socket.recv()))
            else:  # what the last batches were may have been lost with the connection
                ask(server.url)

    generate(server.url, "a")
    follow("a")
    generate(server.url, "b")
    follow("a", "b")
    httpx.post(f"{server.url}/flush_cache", timeout=DEADLINE_S).raise_for_status()
    follow()

    generate(server.url, "a")
    victim = server.pids["scheduler"]
    os.kill(victim, signal.SIGKILL)
    seconds_until(lambda: server.pids.get("scheduler", victim) != victim)
    seconds_until(lambda: is_ready(server.url))
    generate(server.url, "c")
    follow("c")
    context.destroy(linger=0)


def test_the_documented_subscriber(server: Launcher, endpoint: str) -> None:
    [program] = re.findall(r"```python\n(.*?)```", (ROOT / "docs/kv-events.md").read_text(), re.S)
    generate(server.url, "a")
    expected = num_cached(server.url)
    with subprocess.Popen(
        [sys.executable, "-c", program, endpoint, server.url], stdout=subprocess.PIPE, text=True
    ) as subscriber:
        assert subscriber.stdout is not None
        assert int(subscriber.stdout.readline()) == expected > 0
        generate(server.url, "b")
        while int(subscriber.stdout.readline()) != 2 * expected:
            pass
        subscriber.kill()


def test_without_an_endpoint_there_is_nothing_to_ask_for() -> None:
    with launcher() as server:
        refused = httpx.post(f"{server.url}/kv_events/snapshot", timeout=DEADLINE_S)
        assert refused.status_code == 400 and "--kv-events" in refused.json()["error"]["message"]


def test_an_endpoint_that_cannot_be_bound_is_said_at_start() -> None:
    bad = launcher(kv_events="tcp://256.0.0.1:1")
    with pytest.raises(EspalierError, match="tcp://256.0.0.1:1"), bad:
        pass
