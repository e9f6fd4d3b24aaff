"""Real servers for tests, and what tests ask of them and of their processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import httpx

from espalier.runtime.config import ServerConfig
from espalier.runtime.processes.launcher import Launcher

DEADLINE_S = 60.0
NUM_PROCESSES = 5
"""That a launcher keeps alive."""
OPTIONS: dict[str, object] = {"kv_pool_tokens": 8192, "max_running_requests": 16, "port": 0}
PROMPT = "Once upon a time, in a village by the sea,"


def launcher(**options: object) -> Launcher:
    return Launcher(ServerConfig.of(**{**OPTIONS, **options}))


def generate_body(max_new_tokens: int, **fields: object) -> dict[str, object]:
    """Greedy and without an end of its own."""
    sampling = {"max_new_tokens": max_new_tokens, "temperature": 0, "ignore_eos": True}
    return {"text": PROMPT, "sampling_params": sampling, **fields}


async def events(response: httpx.Response) -> AsyncGenerator[dict[str, Any] | None]:
    """The data of each event; None for the one that says that the stream is done."""
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            data = line.removeprefix("data: ")
            yield None if data == "[DONE]" else json.loads(data)


def stats(url: str) -> dict[str, Any]:
    """The scheduler's, from the server itself; asked again where it did not answer in time."""
    while True:
        found = httpx.get(f"{url}/server_info", timeout=DEADLINE_S).json()["internal_states"]
        if found:
            return dict(found[0])


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready", timeout=5.0).status_code == 200
    except httpx.TransportError:
        return False


def seconds_until(condition: Callable[[], bool], deadline_s: float = DEADLINE_S) -> float:
    """How long `condition` took to hold; it is asked 50 times a second."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < deadline_s, "it did not happen within the deadline"
        time.sleep(0.02)
    return time.monotonic() - start


def is_idle(url: str) -> bool:
    """Nothing runs or waits, and no slot is held."""
    now = stats(url)
    held = now["pool_tokens"] - now["free_tokens"] - now["evictable_tokens"]
    return bool(now["num_running"] == now["num_waiting"] == held == 0)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"


def serve(*flags: str) -> tuple[subprocess.Popen[str], str]:
    """`espalier serve` as users run it, once it is ready; all its processes are there."""
    process = subprocess.Popen(
        [sys.executable, "-m", "espalier", "serve", "smollm2", "--port", "0"]
        + ["--max-total-tokens", "8192", *flags],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"http://[\d.]+:\d+", line):
            assert len(descendants(process.pid)) == NUM_PROCESSES
            return process, found[0]
    raise AssertionError(f"espalier serve ended with {process.wait()}")


def descendants(pid: int) -> set[int]:
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, queue = set[int](), [pid]
    while queue:
        for child in children.get(queue.pop(), []):
            found.add(child)
            queue.append(child)
    return found
