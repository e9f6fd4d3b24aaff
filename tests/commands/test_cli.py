"""The `espalier` command itself: what it imports, what it prints, how it exits."""

from __future__ import annotations

import io
import signal
import subprocess
import sys

import pytest

from espalier.cli import main

COMMANDS = ("serve", "generate", "chat", "pull")


def _python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def test_help_lists_the_commands_and_imports_none_of_them() -> None:
    done = _python(f"""
import sys
from espalier.cli import main
try:
    main(["--help"])
finally:
    loaded = [name for name in {COMMANDS!r} if f"espalier.commands.{{name}}" in sys.modules]
    print(loaded, "torch" in sys.modules, file=sys.stderr)
""")
    assert done.stderr == "[] False\n"
    for name in COMMANDS:
        assert f"\n    {name} " in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_s_help_is_its_own(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([name, "--help"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: espalier {name} ")


def test_no_command_imports_torch_before_it_has_to() -> None:
    names = ", ".join(f"espalier.commands.{name}" for name in COMMANDS)
    done = _python(f"import sys, {names}; assert 'torch' not in sys.modules")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["serve", "--port", "65536"], "--port: port must be"),
        (["generate", "x", "--top-p", "0"], "--top-p: top_p must be"),
        (["generate", "x", "--max-passes", "0"], "--max-passes: max_passes must be"),
        (["generate", "x", "--api-key", "k"], "--api-key: only with --url"),
        (["chat", "--url", "http://h", "--num-threads", "1"], "--num-threads: not with --url"),
    ],
    ids=str,
)
def test_usage_errors_are_one_line_and_exit_with_2(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"espalier: error: {message}")
    assert printed.err.count("\n") == 1


def test_flags_are_not_abbreviated(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["serve", "--max-queued", "5"])
    assert caught.value.code == 2
    assert "unrecognized arguments: --max-queued" in capsys.readouterr().err


def test_ctrl_c_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(io.StringIO):
        def read(self, size: int | None = -1, /) -> str:
            signal.raise_signal(signal.SIGINT)
            return ""

    monkeypatch.setattr(sys, "stdin", Interrupted())
    assert main(["generate"]) == 130
