"""`espalier chat`: a conversation in the terminal, as one program whose state grows.

The state is token ids, so each turn takes all turns before it from the cache. Answers go to
standard output, everything else to standard error; without a terminal, lines are read from
standard input and the first error ends the chat.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from espalier.frontend_lang import Expr, ProgramState, assistant, function, user
from espalier.runtime.errors import EspalierError
from espalier.runtime.programs.errors import BranchError
from espalier.runtime.programs.executor import ProgramHost
from espalier.runtime.programs.values import GenInfo

from .model import add_model_flags, add_sampling_flags, asked, opened_model, sampling_of
from .terminal import Terminal

_MAX_TOKENS = 512
_TEMPERATURE = 0.7
_HELP = "/reset forgets the conversation, /system TEXT begins one with TEXT, /exit leaves"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--system", metavar="TEXT", help="a system message to begin with")
    add_sampling_flags(parser, max_tokens=_MAX_TOKENS, temperature=_TEMPERATURE)
    add_model_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    sampling = {"max_tokens": _MAX_TOKENS, "temperature": _TEMPERATURE, **sampling_of(arguments)}
    answer = asked("answer", **sampling)
    with opened_model(arguments) as backend:
        chat(Terminal(), backend, answer, arguments.system)
    return 0


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a conversation begins with."""

    system: str | None


def chat(terminal: Terminal, backend: ProgramHost, answer: Expr, system: str | None) -> None:
    """Hold conversations until the user leaves."""
    if terminal.is_interactive:
        terminal.note(_HELP)
    beginning: Beginning | None = Beginning(system)
    while beginning is not None:
        run = conversation.run(terminal, answer, beginning.system, backend=backend)
        beginning = run.return_value


@function
def conversation(
    s: ProgramState, terminal: Terminal, answer: Expr, system: str | None
) -> Beginning | None:
    """One conversation; returns what the next one begins with, None if there is none."""
    if system is not None:
        s.system(system)
    while (line := terminal.ask()) is not None:
        command, _, rest = line.partition(" ")
        match command:
            case "":
                pass
            case "/exit" | "/quit":
                return None
            case "/reset":
                return Beginning(system)
            case "/system":
                return Beginning(rest.strip() or None)
            case _ if command.startswith("/") and command[1:].isalpha():
                terminal.note(_HELP)
            case _:
                _turn(s, terminal, user(line) + assistant(answer))
    return None


def _turn(s: ProgramState, terminal: Terminal, question: Expr) -> None:
    """Ask in a branch, which joins the conversation when the answer is whole: one that was
    stopped or failed leaves no trace."""
    branches = s.fork()
    branches += question
    try:
        for piece in branches[0].text_iter("answer"):
            terminal.write(piece)
        info = branches[0].get_meta_info("answer")
        branches.join("concate_and_append")
    except KeyboardInterrupt as stop:
        branches.abandon(stop)
        terminal.end_answer("stopped; question and answer are forgotten")
    except BranchError as error:
        branches.abandon(error)
        cause = error.__cause__
        if not terminal.is_interactive or not isinstance(cause, EspalierError):
            raise cause or error from None
        terminal.end_answer(f"error: {cause}")
    else:
        assert isinstance(info, GenInfo), info
        terminal.end_answer(_summary(info))


def _summary(info: GenInfo) -> str:
    usage = info.usage
    cut = ", cut at --max-tokens" if info.finish.kind == "length" else ""
    return (
        f"{usage.completion_tokens} tokens{cut}; {usage.cached_tokens} of "
        f"{usage.prompt_tokens} before them from the cache"
    )
