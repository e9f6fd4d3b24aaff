"""`espalier chat` against a scripted backend: what the model sees, what the user sees."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Iterable

import pytest

from espalier.commands.chat import chat
from espalier.commands.flags import UsageError
from espalier.commands.terminal import Terminal
from espalier.frontend_lang import gen
from espalier.runtime.errors import EngineClosed, InvalidRequest, RequestFailed
from espalier.runtime.messages import FinishReason
from espalier.runtime.programs.backend import GenerateCall
from espalier.runtime.programs.executor import Executor
from tests.scripted_backend import Answer, Gate, Script, ScriptedBackend, answer

pytestmark = pytest.mark.timeout(20, method="thread")


class TypedTerminal(Terminal):
    """The user types `lines`; Ctrl-C comes where an answer has "<stop>"."""

    def __init__(self, lines: Iterable[str], *, is_interactive: bool = True) -> None:
        super().__init__()
        self.is_interactive = is_interactive
        self.answers = ""
        self.notes: list[str] = []
        self._lines = iter(lines)

    def ask(self) -> str | None:
        return next(self._lines, None)

    def write(self, piece: str) -> None:
        self.answers += piece
        if "<stop>" in piece:
            signal.raise_signal(signal.SIGINT)

    def end_answer(self, note: str) -> None:
        self.answers += "\n"
        self.note(note)

    def note(self, text: str) -> None:
        self.notes.append(text)


def _chat(
    *lines: str, script: Script, system: str | None = None, is_interactive: bool = True
) -> tuple[TypedTerminal, ScriptedBackend]:
    terminal = TypedTerminal(lines, is_interactive=is_interactive)
    backend = ScriptedBackend(script)
    with Executor(backend) as executor:
        chat(terminal, executor, gen("answer", max_tokens=9), system)
    return terminal, backend


def _turn(question: str, reply: str | None = None) -> str:
    end = "" if reply is None else f"{reply}<|im_end|>\n"
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{end}"


def echo(prompt: str, call: GenerateCall) -> Answer:
    question = prompt.rpartition("user\n")[2].partition("<")[0]
    return answer("re: ", question)


def test_each_turn_continues_the_ids_of_the_turns_before() -> None:
    terminal, backend = _chat("abc", "yes", script=echo)
    assert backend.prompts == [_turn("abc"), _turn("abc", "re: abc") + _turn("yes")]
    first, second = backend.calls
    # The generated ids are single bytes; tokenised again, "abc" would be one id.
    generated = tuple(b"re: abc")
    assert tuple(second.input_ids[: len(first.input_ids) + 7]) == (*first.input_ids, *generated)
    assert terminal.answers == "re: abc\nre: yes\n"


def test_the_user_sees_what_an_answer_took() -> None:
    def script(prompt: str, call: GenerateCall) -> Answer:
        return answer("abcd", finish=FinishReason(kind="length"))

    terminal, backend = _chat("hi", script=script)
    num_prompt = len(backend.calls[0].input_ids)
    assert terminal.notes[1:] == [
        f"4 tokens, cut at --max-tokens; {num_prompt // 2} of {num_prompt} before them "
        "from the cache"
    ]


@pytest.mark.parametrize("leave", ["/exit", "/quit"])
def test_leaving(leave: str) -> None:
    _, backend = _chat("one", leave, "two", script=echo)
    assert backend.prompts == [_turn("one")]


def test_reset_keeps_the_system_message_and_system_replaces_it() -> None:
    lines = ("a", "/reset", "b", "/system Be brief", "c", "/system", "d")
    _, backend = _chat(*lines, script=echo, system="Be kind")
    kind = "<|im_start|>system\nBe kind<|im_end|>\n"
    brief = "<|im_start|>system\nBe brief<|im_end|>\n"
    assert backend.prompts == [kind + _turn("a"), kind + _turn("b"), brief + _turn("c"), _turn("d")]


def test_empty_lines_and_unknown_commands_are_not_asked() -> None:
    terminal, backend = _chat("", "/help", "/what now", "/etc/hosts?", script=echo)
    assert backend.prompts == [_turn("/etc/hosts?")]
    assert [note.startswith("/reset forgets") for note in terminal.notes] == [True] * 3 + [False]


def test_ctrl_c_stops_the_answer_and_forgets_the_turn() -> None:
    never = Gate()

    def script(prompt: str, call: GenerateCall) -> Answer:
        if "long" in prompt:
            return answer("on and <stop>", "on", gates={1: never})
        return echo(prompt, call)

    terminal, backend = _chat("a", "long", "b", script=script)
    assert terminal.answers == "re: a\non and <stop>\nre: b\n"
    assert terminal.notes[2] == "stopped; question and answer are forgotten"
    assert backend.prompts[2] == _turn("a", "re: a") + _turn("b")
    assert (backend.num_aborted, backend.num_running) == (1, 0)


def _too_long(prompt: str, call: GenerateCall) -> Answer:
    if "long" in prompt:
        return Answer(error=InvalidRequest("the prompt is too long"))
    return echo(prompt, call)


def test_a_turn_that_fails_is_forgotten_and_the_chat_goes_on() -> None:
    terminal, backend = _chat("a", "long", "b", script=_too_long)
    assert terminal.answers == "re: a\n\nre: b\n"
    assert terminal.notes[2] == "error: the prompt is too long"
    assert backend.prompts[2] == _turn("a", "re: a") + _turn("b")


def test_without_a_terminal_the_first_error_ends_the_chat() -> None:
    with pytest.raises(InvalidRequest, match="too long"):
        _chat("a", "long", "b", script=_too_long, is_interactive=False)


def test_a_bug_in_the_backend_ends_the_chat() -> None:
    def script(prompt: str, call: GenerateCall) -> Answer:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        _chat("a", "b", script=script)


def test_a_closed_backend_ends_the_chat() -> None:
    executor = Executor(ScriptedBackend(echo))
    executor.close()
    with pytest.raises(EngineClosed):
        chat(TypedTerminal(["a", "b"]), executor, gen("answer"), None)


def test_a_failed_request_is_told() -> None:
    def script(prompt: str, call: GenerateCall) -> Answer:
        return answer("half", error=RequestFailed("the step failed"))

    terminal, _ = _chat("a", script=script)
    assert terminal.answers == "half\n"
    assert terminal.notes[-1] == "error: the step failed"


def test_without_a_terminal_lines_come_from_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(" one \ntwo [b]"))
    with Executor(ScriptedBackend(echo)) as executor:
        chat(Terminal(), executor, gen("answer"), None)
    captured = capsys.readouterr()
    assert captured.out == "re: one\nre: two [b]\n"
    assert captured.err.count("from the cache\n") == 2


def test_input_that_is_no_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n"), encoding="utf-8"))
    with pytest.raises(UsageError, match="not text in UTF-8"):
        Terminal().ask()


def test_ctrl_c_at_the_prompt_does_not_leave(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted:
        num_reads = 0

        def isatty(self) -> bool:
            return False

        def readline(self, size: int = -1) -> str:
            self.num_reads += 1
            if self.num_reads == 1:
                signal.raise_signal(signal.SIGINT)
            return "hello\n"

    monkeypatch.setattr(sys, "stdin", Interrupted())
    assert Terminal().ask() == "hello"
    assert "leaves" in capsys.readouterr().err
