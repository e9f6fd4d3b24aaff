"""The listening socket: what can't be one says why, and what is one has a URL."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from espalier.runtime.errors import LaunchError
from espalier.runtime.processes.listening import listen_tcp, listen_unix, url_of


@pytest.mark.parametrize(
    "host", ["", "a..b", "x" * 70, "a\0b", "no-such-host.invalid", "192.0.2.1"]
)
def test_a_host_that_can_t_be_listened_on_is_named(host: str) -> None:
    with pytest.raises(LaunchError, match="cannot listen on"):
        listen_tcp(host, 0)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:"),
        ("0.0.0.0", "http://127.0.0.1:"),
        ("::1", "http://[::1]:"),
    ],
)
def test_its_url_is_what_clients_here_call(host: str, url: str) -> None:
    if ":" in host and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    with listen_tcp(host, 0) as listener:
        assert url_of(listener) == f"{url}{listener.getsockname()[1]}"


def test_a_unix_socket_needs_no_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # its own path may be too long for a socket
    path = Path("http")
    with listen_unix(path) as listener:
        assert url_of(listener) == "http://localhost"
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
