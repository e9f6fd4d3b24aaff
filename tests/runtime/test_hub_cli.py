"""The `espalier` command, as its own process."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from espalier.cli import main
from espalier.runtime.hub.catalog import CATALOG, default_cache_dir, installed_path


def _espalier(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "espalier", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_version() -> None:
    assert _espalier("--version").stdout.strip() == f"espalier {version('espalier-lm')}"


@pytest.mark.parametrize("arguments", [(), ("pull",), ("fetch",), ("pull", "smollm2", "--what")])
def test_wrong_usage_exits_with_2(arguments: tuple[str, ...]) -> None:
    result = _espalier(*arguments)
    assert result.returncode == 2
    assert "usage: espalier" in result.stderr


def test_errors_are_one_line_without_a_traceback(tmp_path: Path) -> None:
    result = _espalier("pull", "gpt", "--cache-dir", str(tmp_path))
    assert result.returncode == 1
    assert result.stdout == ""
    assert "espalier: error: unknown model 'gpt'" in result.stderr
    assert "Traceback" not in result.stderr


def test_pull_prints_the_path_of_a_pulled_model(capsys: pytest.CaptureFixture[str]) -> None:
    path = installed_path(CATALOG["smollm2"], default_cache_dir())
    if not path.is_file():
        pytest.skip("the default model is not pulled (espalier pull smollm2)")
    assert main(["pull", "smollm2"]) == 0
    assert capsys.readouterr().out.strip() == str(path)


def test_the_command_does_not_import_torch() -> None:
    code = "import sys, espalier.cli; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
