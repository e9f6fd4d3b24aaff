"""Supervision when things happen at bad moments: two deaths at once, a launcher that was stopped,
processes that hang before they are ready, a directory that has changed."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import zmq

from espalier.runtime.errors import LaunchError
from espalier.runtime.hub.catalog import default_cache_dir
from espalier.runtime.hub.source import resolve_model
from espalier.runtime.processes import supervisor
from espalier.runtime.processes.launcher import Launcher
from tests.integration.servers import (
    DEADLINE_S,
    PROMPT,
    descendants,
    is_alive,
    is_ready,
    launcher,
    seconds_until,
    serve,
)

pytestmark = pytest.mark.alone

WATCHDOG_S = 2.0


@pytest.fixture(scope="module")
def server() -> Iterator[Launcher]:
    with launcher(watchdog_timeout_s=WATCHDOG_S) as running:
        yield running


def wait_for_another(server: Launcher, name: str, old: int) -> int:
    """The process that has taken the place of `old`."""
    seconds_until(lambda: server.pids.get(name, old) != old)
    return server.pids[name]


@contextmanager
def stopped(pid: int) -> Generator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def served(*flags: str) -> Generator[tuple[int, str]]:
    """The process id and the URL of an `espalier serve`."""
    process, url = serve(*flags)
    try:
        yield process.pid, url
        assert process.poll() is None
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def named(name: str, family: set[int]) -> int:
    """The only one of a family that ps lists by this name."""
    [pid] = [pid for pid in family if Path(f"/proc/{pid}/comm").read_text().strip() == name]
    return pid


def test_a_scheduler_and_its_fork_server_die_while_nobody_looks() -> None:
    with served() as (pid, url):
        children = descendants(pid)
        fork_server = named("esp-fork_server", children)
        scheduler = named("esp-scheduler", descendants(fork_server))
        with stopped(pid):
            os.kill(scheduler, signal.SIGKILL)
            seconds_until(lambda: not Path(f"/proc/{scheduler}").exists())  # that is reported
            os.kill(fork_server, signal.SIGKILL)
            seconds_until(lambda: not is_alive(fork_server))
        seconds_until(lambda: not {scheduler, fork_server} & descendants(pid))
        seconds_until(lambda: is_ready(url))


def test_a_launcher_that_was_stopped_does_not_take_the_others_for_dead() -> None:
    """By Ctrl-Z, a debugger or a frozen container."""
    with served("--watchdog-timeout", "1") as (pid, url):
        family = descendants(pid)
        with stopped(pid):
            until = time.monotonic() + 3.0
            seconds_until(lambda: time.monotonic() > until)
        until = time.monotonic() + 2.0
        seconds_until(lambda: time.monotonic() > until)
        assert descendants(pid) == family and is_ready(url)


def test_the_compilers_are_ready_when_the_server_is_and_replaced_when_they_die(
    server: Launcher,
) -> None:
    """Else they would start beside the first requests, and take half of a core from them."""
    scheduler = server.pids["scheduler"]
    [zygote] = family = descendants(scheduler)
    assert named("esp-zygote", family) == zygote
    assert command_of(zygote) == command_of(scheduler), "a fork, with everything loaded"
    assert len(os.listdir(f"/proc/{zygote}/task")) == 1
    os.kill(zygote, signal.SIGKILL)
    seconds_until(lambda: not is_alive(zygote))
    sampling = {"max_new_tokens": 8, "regex": "(sea|sand)"}
    body = {"text": PROMPT, "sampling_params": sampling}
    answer = httpx.post(f"{server.url}/generate", json=body, timeout=DEADLINE_S).json()
    assert answer["text"] in ("sea", "sand"), answer
    another = named("esp-zygote", descendants(scheduler))
    assert command_of(another) != command_of(scheduler)
    assert server.pids["scheduler"] == scheduler


@pytest.mark.parametrize("name", ["tokenizer", "detokenizer", "scheduler"])
def test_a_process_that_can_t_read_its_mailbox_is_replaced(server: Launcher, name: str) -> None:
    """It would lose messages: whoever waits for one of them would wait for ever."""
    old = server.pids[name]
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.PUSH)
    socket.connect(f"ipc://{server.directory}/{name}.news")
    socket.send(b"\xc1")
    try:
        wait_for_another(server, name, old)
    finally:
        context.destroy(linger=0)
    seconds_until(lambda: is_ready(server.url))


def test_a_fork_server_that_hangs_is_replaced(server: Launcher) -> None:
    """It does not tell that its scheduler has died, nor fork another one."""
    old = server.pids
    os.kill(old["fork_server"], signal.SIGSTOP)
    os.kill(old["scheduler"], signal.SIGKILL)
    wait_for_another(server, "scheduler", old["scheduler"])
    seconds_until(lambda: is_ready(server.url))


def test_a_process_that_hangs_before_it_is_ready_is_replaced(
    server: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_START_S", 10.0)
    os.kill(server.pids["detokenizer"], signal.SIGKILL)
    hanging = wait_for_another(server, "detokenizer", server.pids["detokenizer"])
    os.kill(hanging, signal.SIGSTOP)
    wait_for_another(server, "detokenizer", hanging)
    seconds_until(lambda: is_ready(server.url))


def test_a_process_that_never_gets_ready_again_ends_the_runtime() -> None:
    server = launcher()
    server.start()
    pid = server.pids["detokenizer"]
    for _ in range(3):
        os.kill(pid, signal.SIGKILL)
        pid = wait_for_another(server, "detokenizer", pid)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(LaunchError, match="detokenizer process ended.*again and again"):
        server.wait(DEADLINE_S)
    assert not server.directory.exists() and server.pids == {}


def test_the_program_may_change_its_directory_and_put_odd_things_on_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    model = resolve_model("smollm2", cache_dir=default_cache_dir()).path
    (tmp_path / "here" / "model.gguf").symlink_to(model)
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])
    with launcher(model="model.gguf") as server:
        monkeypatch.chdir(tmp_path)
        old = server.pids["tokenizer"]
        os.kill(old, signal.SIGKILL)
        wait_for_another(server, "tokenizer", old)
        seconds_until(lambda: is_ready(server.url))


def test_a_close_does_not_wait_for_what_has_nothing_to_lose() -> None:
    """New processes, which have not said anything yet, can't be told to stop."""
    server = launcher()
    server.start()
    names = ["fork_server", "tokenizer"]
    old = server.pids
    for name in names:
        os.kill(old[name], signal.SIGKILL)
    new = [wait_for_another(server, name, old[name]) for name in names]
    began = time.monotonic()
    server.close(drain_s=0.0)
    assert time.monotonic() - began < supervisor._END_S / 2  # pyright: ignore[reportPrivateUsage]
    assert not any(map(is_alive, new))


def test_one_that_was_never_started_is_closed_by_many_and_not_started_then() -> None:
    unused = launcher()
    threads = [threading.Thread(target=unused.close, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert not unused.directory.exists() and not any(t.is_alive() for t in threads)
    with pytest.raises(LaunchError, match="stopped"):
        unused.start()
