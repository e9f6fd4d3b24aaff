"""`espalier generate`: one prompt, one output, as a program of a few lines."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import msgspec
from rich.console import Console

from espalier.frontend_lang import (
    Expr,
    ProgramRun,
    ProgramState,
    assistant,
    function,
    system,
    user,
)
from espalier.runtime.messages import Unenforced
from espalier.runtime.programs.executor import ProgramHost
from espalier.runtime.programs.values import GenInfo, SelectInfo

from .flags import UsageError
from .model import add_model_flags, add_sampling_flags, asked, opened_model, sampling_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "prompt",
        nargs="?",
        default="-",
        metavar="PROMPT",
        help="default, or -: standard input, without its last line break",
    )
    parser.add_argument("--chat", action="store_true", help="the prompt is a user's message")
    parser.add_argument("--system", metavar="TEXT", help="a system message before it")
    parser.add_argument("--no-stream", action="store_true", help="print the text when it is whole")
    parser.add_argument(
        "--json", action="store_true", help="print an object: text, finish_reason, usage, grammar"
    )
    group = parser.add_argument_group("output", "What the output must be; at most one of these.")
    shapes = group.add_mutually_exclusive_group()
    shapes.add_argument("--json-schema", metavar="FILE|JSON", help="of this JSON schema")
    shapes.add_argument("--regex", metavar="PATTERN", help="match this, from end to end")
    shapes.add_argument("--ebnf", metavar="FILE", help="of this grammar")
    shapes.add_argument(
        "--choice",
        action="append",
        metavar="TEXT",
        help="one of these, whichever is the likeliest; may be repeated",
    )
    group = parser.add_argument_group("with --json-schema")
    group.add_argument(
        "--open-objects",
        action="store_true",
        default=None,
        help="objects may have keys that it neither names nor forbids",
    )
    group.add_argument(
        "--unenforced",
        choices=get_args(Unenforced),
        help="what can't be enforced of it is refused (the default), or only validated",
    )
    add_sampling_flags(parser, max_tokens=128, temperature=0.0)
    add_model_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    request = request_of(arguments)
    with opened_model(arguments) as backend:
        generate(arguments, request, backend, Console())
    return 0


@function
def generation(s: ProgramState, request: Expr, write: Callable[[str], None]) -> None:
    s += request
    for piece in s.text_iter("text"):
        write(piece)


def generate(
    arguments: argparse.Namespace, request: Expr, backend: ProgramHost, output: Console
) -> None:
    """Print what `backend` makes of `request`."""
    if arguments.json or arguments.no_stream:
        done = generation.run(request, _hold_back, backend=backend)
        text = _report(done, arguments.choice) if arguments.json else done["text"]
        output.out(text, highlight=False)
        return
    has_begun = False

    def stream(piece: str) -> None:
        nonlocal has_begun
        has_begun = True
        output.out(piece, end="", highlight=False)

    try:
        generation.run(request, stream, backend=backend)
    finally:
        if has_begun:
            output.out("")


def _hold_back(piece: str) -> None:
    """The whole text is printed at the end."""


def request_of(arguments: argparse.Namespace) -> Expr:
    """Everything that the model is asked. Raises `UsageError`."""
    sampling, schema, ebnf = sampling_of(arguments), arguments.json_schema, arguments.ebnf
    if sampling and arguments.choice:
        flag = min(sampling).replace("_", "-")
        raise UsageError(f"--{flag}: not with --choice, whose texts are scored, not generated")
    if schema is not None and not schema.lstrip().startswith("{"):
        schema = _read("--json-schema", schema)
    for name in ("open_objects", "unenforced"):
        if schema is None and getattr(arguments, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')}: only with --json-schema")
    text = asked(
        "text",
        json_schema=schema,
        open_objects=arguments.open_objects,
        unenforced=arguments.unenforced,
        regex=arguments.regex,
        ebnf=None if ebnf is None else _read("--ebnf", ebnf),
        choices=arguments.choice,
        **sampling,
    )
    if arguments.system is not None and not arguments.chat:
        raise UsageError("--system: only with --chat")
    prompt = _prompt(arguments.prompt)
    if not arguments.chat:
        return prompt + text
    messages = user(prompt) + assistant(text)
    return messages if arguments.system is None else system(arguments.system) + messages


def _prompt(argument: str) -> str:
    if argument != "-":
        return argument
    if sys.stdin.isatty():
        print("espalier: reading the prompt from here; Ctrl-D ends it", file=sys.stderr)
    try:
        return sys.stdin.read().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"the prompt is not text in UTF-8: {error}") from error


def _read(flag: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{flag}: cannot read {path}: {error}") from error


def _report(done: ProgramRun, choices: list[str] | None) -> str:
    """One line of JSON. A choice is scored, not generated: it has scores instead of an end."""
    report: dict[str, object] = {"text": done["text"]}
    match done.get_meta_info("text"):
        case SelectInfo(scores=scores):
            report["scores"] = dict(zip(choices or (), scores, strict=True))
        case GenInfo() as info:
            report["finish_reason"] = info.finish.kind
            report["usage"] = msgspec.to_builtins(info.usage)
            if info.grammar is not None:
                report["grammar"] = msgspec.to_builtins(info.grammar)
        case other:
            raise AssertionError(other)
    return json.dumps(report, ensure_ascii=False)
