"""Every example runs as it is, as a newcomer would start it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_main_job() -> None:
    output = run("main_job.py")
    for title in ("record", "cause", "effect", "next step", "verdict"):
        assert f"[{title}] " in output
    assert "Incident(service=" in output
    summary = re.search(
        r"(\d+) tokens computed, (\d+) taken from the cache, (\d+) forward passes", output
    )
    assert summary is not None
    computed, cached, passes = map(int, summary.groups())
    assert cached > computed > passes > 0


def test_the_program_in_the_readme(tmp_path: Path) -> None:
    [program] = re.findall(
        r"```python\n(.*?)```", (EXAMPLES.parent / "README.md").read_text(), re.S
    )
    assert len(program.splitlines()) <= 22
    script = tmp_path / "program.py"
    script.write_text(program)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=280, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\(City\(name=.*\), '(calm|busy|grand)'\)\n", done.stdout)
