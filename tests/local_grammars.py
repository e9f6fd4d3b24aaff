"""Grammars compiled where they are asked for: the real compiler, without its processes."""

from __future__ import annotations

from concurrent.futures import Future

from espalier.runtime.errors import InvalidRequest
from espalier.runtime.grammar.compile_job import compile_constraint
from espalier.runtime.grammar.engines import Engines
from espalier.runtime.grammar.guide import CompiledGrammar
from espalier.runtime.grammar.jumping import Jumper
from espalier.runtime.grammar.service import GrammarService
from espalier.runtime.grammar.validation import Verdict, validate_json
from espalier.runtime.grammar.vocabulary import Vocabulary
from espalier.runtime.messages import Constraint
from tests.fakes import BYTE_VOCAB, EOS, byte_tokens


class LocalGrammars(GrammarService):
    """The futures are done when they are given out."""

    def compile(self, constraint: Constraint) -> Future[CompiledGrammar]:
        future: Future[CompiledGrammar] = Future()
        try:
            future.set_result(self._engines.load(compile_constraint(constraint, self._engines)))
        except InvalidRequest as error:
            future.set_exception(error)
        return future

    def check(self, schema: str, text: str) -> Future[Verdict]:
        future: Future[Verdict] = Future()
        future.set_result(validate_json(schema, text))
        return future


def byte_jumper() -> Jumper:
    """Over the vocabulary of bytes."""
    return Jumper(
        lambda text: [*text.encode()],
        byte_tokens(),
        control_ids=range(256, 260),
        vocab_width=BYTE_VOCAB,
    )


def byte_engines() -> Engines:
    """Over the vocabulary of bytes."""
    controls = tuple(range(256, BYTE_VOCAB))
    return Engines(Vocabulary(tuple(byte_tokens()), controls, (EOS,), BYTE_VOCAB))


def byte_grammars() -> LocalGrammars:
    """Over the vocabulary of bytes."""
    return LocalGrammars(byte_engines())
