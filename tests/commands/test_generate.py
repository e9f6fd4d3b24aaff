"""`espalier generate` against a scripted backend: what it asks, what it prints."""

from __future__ import annotations

import argparse
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from espalier.commands import generate as command
from espalier.commands.flags import UsageError
from espalier.runtime.errors import RequestFailed
from espalier.runtime.messages import Ebnf, FinishReason, GrammarReport, JsonSchema, Regex
from espalier.runtime.programs.backend import GenerateCall
from espalier.runtime.programs.executor import Executor
from tests.scripted_backend import Answer, Gate, Script, ScriptedBackend, answer

pytestmark = pytest.mark.timeout(20, method="thread")


def _arguments(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(given)


def _generate(
    *given: str, script: Script = lambda prompt, call: "ok", **options: Any
) -> tuple[str, ScriptedBackend]:
    """What it prints, and the backend that it asked."""
    arguments, backend = _arguments(*given), ScriptedBackend(script, **options)
    output = io.StringIO()
    with Executor(backend) as executor:
        request = command.request_of(arguments)
        command.generate(arguments, request, executor, Console(file=output))
    return output.getvalue(), backend


def _call(*given: str) -> GenerateCall:
    [call] = _generate(*given)[1].calls
    return call


def test_a_prompt_is_continued() -> None:
    text, backend = _generate("Hello", script=lambda prompt, call: answer(" [b]wor", "ld\n"))
    assert text == " [b]world\n\n"
    assert backend.prompts == ["Hello"]


def test_help_tells_the_defaults_of_programs() -> None:
    sampling = _call("Hello").sampling
    assert (sampling.max_new_tokens, sampling.temperature, sampling.top_p) == (128, 0.0, 1.0)


def test_sampling_flags_reach_the_backend() -> None:
    sampling = _call(
        *("x", "--max-tokens", "7", "--temperature", "0.5", "--top-p", "0.9", "--seed", "3"),
        *("--stop", "END", "--stop", "\n"),
    ).sampling
    assert (sampling.max_new_tokens, sampling.temperature, sampling.top_p) == (7, 0.5, 0.9)
    assert (sampling.seed, sampling.stop) == (3, ("END", "\n"))


def test_a_chat_has_the_template_around_the_prompt() -> None:
    _, backend = _generate("Hi", "--chat", "--system", "Be kind")
    assert backend.prompts == [
        "<|im_start|>system\nBe kind<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    ]


def test_text_is_printed_as_it_comes() -> None:
    gate = Gate()

    class Watched(io.StringIO):
        def flush(self) -> None:
            if self.getvalue() == "one ":
                gate.open()

    backend = ScriptedBackend(lambda prompt, call: answer("one ", "two", gates={1: gate}))
    arguments, output = _arguments("x"), Watched()
    with Executor(backend) as executor:
        request = command.request_of(arguments)
        command.generate(arguments, request, executor, Console(file=output))
    assert output.getvalue() == "one two\n"


def test_no_stream_prints_the_whole_text_only() -> None:
    def script(prompt: str, call: GenerateCall) -> Answer:
        return answer("one", error=RequestFailed("lost"))

    output = io.StringIO()
    arguments = _arguments("x", "--no-stream")
    with Executor(ScriptedBackend(script)) as executor, pytest.raises(RequestFailed):
        request = command.request_of(arguments)
        command.generate(arguments, request, executor, Console(file=output))
    assert output.getvalue() == ""
    assert _generate("x", "--no-stream")[0] == "ok\n"


def test_an_error_in_the_middle_ends_the_line_and_is_raised() -> None:
    def script(prompt: str, call: GenerateCall) -> Answer:
        return answer("one", error=RequestFailed("lost"))

    output = io.StringIO()
    arguments = _arguments("x")
    with Executor(ScriptedBackend(script)) as executor, pytest.raises(RequestFailed, match="lost"):
        request = command.request_of(arguments)
        command.generate(arguments, request, executor, Console(file=output))
    assert output.getvalue() == "one\n"


def test_json_has_text_end_and_usage() -> None:
    def script(prompt: str, call: GenerateCall) -> Answer:
        return answer("schön", finish=FinishReason(kind="length"))

    text, _ = _generate("Hello", "--json", script=script)
    assert "schön" in text
    assert json.loads(text) == {
        "text": "schön",
        "finish_reason": "length",
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 6,
            "cached_tokens": 2,
            "forced_tokens": 0,
            "num_retractions": 0,
        },
    }


def test_json_has_what_became_of_a_schema() -> None:
    report = GrammarReport(engine="xgrammar", notes=("n",), valid=False, trouble="t")
    text, _ = _generate(
        *("Hello", "--json", "--json-schema", "{}"),
        script=lambda prompt, call: answer("1", grammar=report),
    )
    assert json.loads(text)["grammar"] == {
        "engine": "xgrammar",
        "notes": ["n"],
        "valid": False,
        "trouble": "t",
    }


def test_choices_are_scored() -> None:
    def score(prefix: str, choice: str) -> float:
        return -1.0 if "no" in choice else -2.0

    given = ("Really?", "--choice", " yes", "--choice", " no")
    assert _generate(*given, score_of=score)[0] == " no\n"
    report = json.loads(_generate(*given, "--json", score_of=score)[0])
    assert report == {"text": " no", "scores": {" yes": -2.0, " no": -1.0}}


def test_constraints_come_from_the_command_line_or_from_files(tmp_path: Path) -> None:
    schema, grammar = tmp_path / "schema.json", tmp_path / "list.ebnf"
    schema.write_text('{"type": "object"}')
    grammar.write_text('root ::= "ä"')
    assert _call("x", "--json-schema", ' {"type": "null"}').constraint == JsonSchema(
        ' {"type": "null"}'
    )
    assert _call("x", "--json-schema", str(schema)).constraint == JsonSchema('{"type": "object"}')
    loose = _call("x", "--json-schema", "{}", "--open-objects", "--unenforced", "validate")
    assert loose.constraint == JsonSchema("{}", open_objects=True, unenforced="validate")
    assert _call("x", "--regex", "[ab]+").constraint == Regex("[ab]+")
    assert _call("x", "--ebnf", str(grammar)).constraint == Ebnf('root ::= "ä"')


@pytest.mark.parametrize("given", [(), ("-",)])
def test_the_prompt_may_come_from_standard_input(
    given: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("two\nlines\n\n"))
    assert _generate(*given)[1].prompts == ["two\nlines\n"]


def test_standard_input_must_be_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff"), encoding="utf-8"))
    with pytest.raises(UsageError, match="not text in UTF-8"):
        _generate()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--max-tokens", "-1"), "^--max-tokens: max_tokens must be"),
        (("--temperature", "nan"), "^--temperature: temperature must be"),
        (("--stop", ""), "^--stop: "),
        (("--choice", "a", "--seed", "1"), "^--seed: not with --choice"),
        (("--choice", ""), "choices must be non-empty"),
        (("--json-schema", "{"), "json_schema is not JSON"),
        (("--json-schema", "no/such.json"), "^--json-schema: cannot read no/such.json"),
        (("--ebnf", "no/such.ebnf"), "^--ebnf: cannot read no/such.ebnf"),
        (("--open-objects",), "^--open-objects: only with --json-schema"),
        (("--regex", "a", "--unenforced", "refuse"), "^--unenforced: only with --json-schema"),
        (("--system", "Be kind"), "^--system: only with --chat"),
    ],
    ids=str,
)
def test_wrong_usage_names_the_flag(given: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        command.request_of(_arguments("x", *given))


def test_only_one_constraint_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        _arguments("x", "--regex", "a", "--choice", "b")
    assert caught.value.code == 2
    assert "--choice: not allowed with argument --regex" in capsys.readouterr().err
