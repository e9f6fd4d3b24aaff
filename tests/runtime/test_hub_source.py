"""Names and paths of models; the hub is a server on loopback."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from espalier.runtime.errors import ModelError
from espalier.runtime.hub.catalog import CATALOG, default_cache_dir, installed_path
from espalier.runtime.hub.source import ModelSource, resolve_model

_COMMIT = "a" * 40
_HUB_FILES = {"config.json": b"{}", "model.safetensors": b"weights", "README.md": b"read me"}


def test_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "some model.gguf"
    path.touch()
    assert resolve_model(path) == ModelSource("gguf", path, "some model")
    assert resolve_model(str(path)) == ModelSource("gguf", path, "some model")


def test_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").touch()
    assert resolve_model(tmp_path) == ModelSource("hf", tmp_path, tmp_path.name)
    monkeypatch.chdir(tmp_path)
    assert resolve_model(".") == ModelSource("hf", Path("."), tmp_path.name)


def test_pulled_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="run `espalier pull smollm2`"):
        resolve_model("smollm2", cache_dir=tmp_path)
    path = installed_path(CATALOG["smollm2"], tmp_path)
    path.parent.mkdir(parents=True)
    path.touch()
    assert resolve_model("smollm2", cache_dir=tmp_path) == ModelSource("gguf", path, "smollm2")


def test_default_cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_cache_dir() == Path("/somewhere/espalier")
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert default_cache_dir() == tmp_path / ".cache" / "espalier"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache_dir() == tmp_path / ".cache" / "espalier"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        ("directory", "has no config.json"),
        ("file", "neither a .gguf file nor a directory"),
        ("nothing.gguf", "no model"),
        ("a/b/c", "no model"),
        ("../x", "no model"),
        ("", "no config.json|no model"),
    ],
)
def test_what_is_no_model_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match=words):
        resolve_model(make)


def _digest(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


class _Hub(BaseHTTPRequestHandler):
    """As much of the hub's protocol as a download of one model takes."""

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == f"/api/models/org/tiny/tree/{_COMMIT}":
            tree = [
                {"type": "file", "path": name, "size": len(data), "oid": _digest(data)}
                for name, data in _HUB_FILES.items()
            ]
            self._answer(200, json.dumps(tree).encode())
        elif path == "/api/models/org/tiny/revision/main":
            siblings = [{"rfilename": name} for name in _HUB_FILES]
            info = {"id": "org/tiny", "sha": _COMMIT, "siblings": siblings}
            self._answer(200, json.dumps(info).encode())
        elif path.startswith(f"/org/tiny/resolve/{_COMMIT}/"):
            self._answer(200, _HUB_FILES[path.rpartition("/")[2]])
        else:
            self._answer(404, b"")

    do_HEAD = do_GET

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{_digest(body)}"')
        self.send_header("X-Repo-Commit", _COMMIT)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def hub_url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def _resolve_in_process(name: str, hub_url: str, home: Path) -> subprocess.CompletedProcess[str]:
    """The hub library reads its environment when it is imported, so this takes a process."""
    code = (
        "import sys; from espalier.runtime.hub.source import resolve_model\n"
        "source = resolve_model(sys.argv[1]); print(source.name, source.path)"
    )
    environment = {"HF_ENDPOINT": hub_url, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0"}
    return subprocess.run(
        [sys.executable, "-c", code, name],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_hub_id_downloads_what_a_model_needs(hub_url: str, tmp_path: Path) -> None:
    result = _resolve_in_process("org/tiny", hub_url, tmp_path)
    assert result.returncode == 0, result.stderr
    name, _, directory = result.stdout.strip().partition(" ")
    assert name == "org/tiny"
    found = {path.name: path.read_bytes() for path in Path(directory).iterdir()}
    assert found == {name: data for name, data in _HUB_FILES.items() if name != "README.md"}


def test_unknown_hub_id_is_a_model_error(hub_url: str, tmp_path: Path) -> None:
    result = _resolve_in_process("org/unknown", hub_url, tmp_path)
    assert "ModelError: cannot get 'org/unknown' from the Hugging Face hub" in result.stderr


def test_hub_out_of_reach_is_a_model_error(tmp_path: Path) -> None:
    result = _resolve_in_process("org/tiny", "http://127.0.0.1:1", tmp_path)
    assert "ModelError: cannot get 'org/tiny' from the Hugging Face hub" in result.stderr
    assert "espalier pull" in result.stderr
