"""The commands on the real model: the engine in this process, and the command as a user's."""

from __future__ import annotations

import argparse
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from espalier.commands import generate
from espalier.commands.chat import chat
from espalier.commands.terminal import Terminal
from espalier.frontend_lang import gen
from espalier.runtime.engine import Engine
from espalier.runtime.sampling.params import SamplingParams


def _generate(engine: Engine, *given: str) -> str:
    parser = argparse.ArgumentParser()
    generate.add_arguments(parser)
    arguments = parser.parse_args(given)
    output = io.StringIO()
    generate.generate(arguments, generate.request_of(arguments), engine, Console(file=output))
    return output.getvalue()


def test_generate_prints_what_the_engine_completes(engine: Engine) -> None:
    sampling = SamplingParams(max_new_tokens=8, temperature=0.0)
    [expected] = engine.complete("Once upon a time", sampling)
    assert _generate(engine, "Once upon a time", "--max-tokens", "8") == expected.text + "\n"


def test_generate_holds_a_chat_s_answer_to_a_schema(engine: Engine) -> None:
    schema = json.dumps(
        {
            "type": "object",
            "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
            "required": ["n"],
        }
    )
    text = _generate(engine, "A number, please", "--chat", "--json-schema", schema, "--json")
    report = json.loads(text)
    assert 0 <= json.loads(report["text"])["n"] <= 99
    assert report["finish_reason"] == "stop"


def test_a_chat_finds_its_earlier_turns_in_the_cache(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("My name is Ada.\nWhat is my name?\n"))
    engine.flush_cache()
    chat(Terminal(), engine, gen("answer", max_tokens=12, ignore_eos=True), None)
    notes = re.findall(r"; (\d+) of (\d+) before them", capsys.readouterr().err)
    (_, first_prompt), (cached, _) = [tuple(map(int, note)) for note in notes]
    assert cached == first_prompt + 11  # the last output token's KV was never needed


def test_a_model_that_is_not_pulled_exits_with_1(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "espalier", "generate", "x", "--cache-dir", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"espalier: error: smollm2 is not in {tmp_path}: run `espalier pull smollm2`\n"
    )
