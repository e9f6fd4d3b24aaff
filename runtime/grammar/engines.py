"""Both grammar engines over one vocabulary: those who compile, and those who load."""

from __future__ import annotations

from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ..ipc.compiling import Artefact
from .engine import CompiledGrammar, EngineGrammar
from .vocabulary import Vocabulary
from .xgrammar_engine import XgrammarCompiler

if TYPE_CHECKING:
    from .llguidance_engine import LlguidanceCompiler


class Engines:
    """For one thread. llguidance is an optional dependency, loaded where it is first used."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self.xgrammar = XgrammarCompiler(
            vocabulary.token_bytes,
            control_ids=vocabulary.control_ids,
            stop_ids=vocabulary.stop_ids,
            vocab_width=vocabulary.width,
        )

    @property
    def has_llguidance(self) -> bool:
        return find_spec("llguidance") is not None

    @cached_property
    def llguidance(self) -> LlguidanceCompiler:
        from .llguidance_engine import LlguidanceCompiler

        return LlguidanceCompiler(
            self._vocabulary.token_bytes,
            control_ids=self._vocabulary.control_ids,
            stop_ids=self._vocabulary.stop_ids,
            vocab_width=self._vocabulary.width,
        )

    def warm_up(self) -> None:
        """Load all that there is to load."""
        if self.has_llguidance:
            _ = self.llguidance

    def load(self, artefact: Artefact) -> CompiledGrammar:
        """What a worker has compiled, ready to match with."""
        grammar: EngineGrammar
        match artefact.engine:
            case "xgrammar":
                grammar = self.xgrammar.load(artefact.payload, is_json=artefact.is_json)
            case "llguidance":
                grammar = self.llguidance.load(artefact.payload, is_json=artefact.is_json)
        return CompiledGrammar(grammar, artefact.notes, artefact.min_tokens, artefact.closing)
