"""What a program's nodes leave behind for its readers: segments of text, variables, usage.

The executor's loop fills them; readers in any thread wait on their logs and futures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Literal

import msgspec

from ..messages import FinishReason, GrammarReport, TokenLogprob, Usage
from .errors import OutputError
from .waiting import Log

Parse = Callable[[str], object]


class GenInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How one output of a `gen` came about; log-probabilities where they were asked for, `grammar`
    where there was a constraint."""

    finish: FinishReason
    usage: Usage
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    grammar: GrammarReport | None = None


class SelectInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How a `select` decided; everything is in the order of the choices."""

    scores: tuple[float, ...]
    logprobs: tuple[tuple[TokenLogprob, ...], ...]
    unconditional_logprobs: tuple[tuple[TokenLogprob, ...], ...] | None = None


class Output(msgspec.Struct, frozen=True):
    """One text and how it came about; `info` is None for a value set by the program."""

    text: str
    info: GenInfo | SelectInfo


MetaInfo = GenInfo | SelectInfo | list["MetaInfo | None"] | None
Outputs = Output | tuple[Output, ...]


class Variable:
    """A name's value from one point of the program on; assigned again, it is another one.

    `text` is the stream of its text, where it has one. `done` is set by the executor.
    """

    def __init__(self, name: str, text: Log[str] | None, parse: Parse | None) -> None:
        self.name = name
        self.text = text
        self.done: Future[Outputs] = Future()
        self._parse = parse
        self._value: object = None
        self._is_parsed = False

    def value(self) -> object:
        """The value, as its type; `done` must be. A list where the `gen` had n > 1."""
        if not self._is_parsed:
            outputs = self.done.result()
            if isinstance(outputs, Output):
                self._value = self._parsed(outputs)
            else:
                self._value = [self._parsed(output) for output in outputs]
            self._is_parsed = True
        return self._value

    def info(self) -> MetaInfo:
        outputs = self.done.result()
        if isinstance(outputs, Output):
            return outputs.info
        return [output.info for output in outputs]

    def _parsed(self, output: Output) -> object:
        if self._parse is None:
            return output.text
        try:
            return self._parse(output.text)
        except ValueError as error:
            assert isinstance(output.info, GenInfo), output
            raise OutputError(self.name, output.text, output.info.finish, error) from error


class AssignedVariable(Variable):
    """A value that the program set itself."""

    def __init__(self, name: str, value: object) -> None:
        super().__init__(name, None, None)
        self._value, self._is_parsed = value, True
        self.done.set_result(())

    def info(self) -> MetaInfo:
        return None


class GatheredVariable(Variable):
    """A name's values in all branches of a fork, None where a branch has none."""

    def __init__(self, name: str, members: Sequence[Variable | None]) -> None:
        super().__init__(name, None, None)
        self._members = tuple(members)

    def value(self) -> object:
        self.done.result()
        return [None if member is None else member.value() for member in self._members]

    def info(self) -> MetaInfo:
        self.done.result()
        return [None if member is None else member.info() for member in self._members]


def gathered(
    before: Mapping[str, Variable], branches: Sequence[Mapping[str, Variable]]
) -> dict[str, GatheredVariable]:
    """A variable for each name that some branch set after the fork, aligned with the branches."""
    names = {
        name: None
        for variables in branches
        for name, variable in variables.items()
        if before.get(name) is not variable
    }
    return {
        name: GatheredVariable(name, [variables.get(name) for variables in branches])
        for name in names
    }


class Segment:
    """The text of one node, as it grows; `role` is set on the markers of that role, `name`
    where the text is that of a variable."""

    __slots__ = ("kind", "name", "role", "text")

    def __init__(
        self,
        kind: Literal["content", "open", "close"] = "content",
        *,
        role: str = "",
        name: str | None = None,
    ) -> None:
        self.kind = kind
        self.role = role
        self.name = name
        self.text: Log[str] = Log()


class UsageTotals(msgspec.Struct, frozen=True, kw_only=True):
    """What a program's `gen`s cost, in tokens; scoring for `select` is not counted."""

    num_outputs: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    forced_tokens: int = 0


class UsageMeter:
    """Adds up usage; written by the executor's loop alone."""

    def __init__(self) -> None:
        self.totals = UsageTotals()

    def add(self, usage: Usage) -> None:
        old = self.totals
        self.totals = UsageTotals(
            num_outputs=old.num_outputs + 1,
            prompt_tokens=old.prompt_tokens + usage.prompt_tokens,
            cached_tokens=old.cached_tokens + usage.cached_tokens,
            completion_tokens=old.completion_tokens + usage.completion_tokens,
            forced_tokens=old.forced_tokens + usage.forced_tokens,
        )


class RunRecord:
    """What all streams of one run share: its usage, and which errors the program has met.

    An error that the program has met at a read, and gone on, is not raised again at its end.
    """

    def __init__(self) -> None:
        self.usage = UsageMeter()
        self._met: list[BaseException] = []

    def acknowledge(self, error: BaseException) -> None:
        self._met.append(error)

    def has_met(self, error: BaseException) -> bool:
        return any(error is known for known in self._met)
