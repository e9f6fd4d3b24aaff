"""Both grammar engines over one vocabulary: those who compile, and those who load."""

from __future__ import annotations

from functools import cached_property

from ..ipc.compiling import Artefact
from .closing import Closer, ClosingVocabulary
from .engine import EngineGrammar
from .guide import CompiledGrammar
from .llguidance_engine import LlguidanceCompiler
from .mask_cache import MaskCache
from .structural_tags import StructuralTagText, prepared_tag
from .vocabulary import Vocabulary
from .wire import decode_grammar
from .xgrammar_engine import XgrammarCompiler

# What a closer remembers while it is used, for each byte of its grammar; about.
_CLOSING_BYTES = 64


class Engines:
    """For one thread; what it loads may be used on another."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._mask_cache = MaskCache()
        self.xgrammar = XgrammarCompiler(
            vocabulary.token_bytes,
            control_ids=vocabulary.control_ids,
            stop_ids=vocabulary.stop_ids,
            vocab_width=vocabulary.width,
        )

    @cached_property
    def llguidance(self) -> LlguidanceCompiler:
        return LlguidanceCompiler(
            self.vocabulary.token_bytes,
            control_ids=self.vocabulary.control_ids,
            stop_ids=self.vocabulary.stop_ids,
            vocab_width=self.vocabulary.width,
        )

    @cached_property
    def closing(self) -> ClosingVocabulary:
        return ClosingVocabulary(
            self.vocabulary.token_bytes,
            control_ids=self.vocabulary.control_ids,
            stop_ids=self.vocabulary.stop_ids,
        )

    def warm_up(self) -> None:
        """Load all that there is to load."""
        _ = self.llguidance
        self.closing.warm_up(-(-self.vocabulary.width // 32) * 32)

    def prepared_tag(self, structure: str) -> StructuralTagText:
        """A structural tag in terms of this vocabulary."""
        vocabulary = self.vocabulary
        return prepared_tag(structure, vocabulary.token_bytes, vocabulary.stop_ids)

    def load(self, artefact: Artefact) -> CompiledGrammar:
        """What a worker has compiled, ready to match with."""
        engine = self._load_engine(artefact)
        closing = artefact.closing
        return CompiledGrammar(
            artefact.engine,
            engine,
            self.vocabulary.token_bytes,
            closer=Closer(decode_grammar(closing), self.closing, artefact.growth)
            if closing
            else None,
            key_tokens=self.closing.key_tokens if artefact.has_free_keys else None,
            notes=artefact.notes,
            is_whole=artefact.is_whole,
            min_tokens=artefact.min_tokens,
            num_bytes=engine.num_bytes + _CLOSING_BYTES * len(closing),
            mask_cache=self._mask_cache,
        )

    def _load_engine(self, artefact: Artefact) -> EngineGrammar:
        payload, is_json = artefact.payload, artefact.is_json
        if artefact.is_serialized:
            return self.xgrammar.load(payload, is_json=is_json, named_ids=artefact.named_ids)
        match artefact.engine:
            case "xgrammar":
                return self.xgrammar.compile(payload.decode(), is_json=is_json, param="payload")
            case "llguidance":
                return self.llguidance.compile(payload.decode(), is_json=is_json, param="payload")
