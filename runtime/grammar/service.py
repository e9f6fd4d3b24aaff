"""Constraint in, compiled grammar out, off the caller's thread; knows no requests."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import Future

from ..histogram import HistogramData
from ..messages import Constraint
from .checks import check_constraint
from .compile_cache import CompileCache
from .xgrammar_engine import CompiledGrammar, XgrammarCompiler

DEFAULT_CACHE_BYTES = 64 << 20
DEFAULT_DEADLINE_S = 30.0


class GrammarService:
    """Compiles for one tokenizer: token i is the bytes `token_bytes[i]`.

    `vocab_width` is the width of the model's logits, at least `len(token_bytes)`. Grammars
    end with one of `stop_ids`; other `control_ids` never occur in constrained output.
    """

    def __init__(
        self,
        token_bytes: Sequence[bytes],
        *,
        control_ids: Collection[int],
        stop_ids: Collection[int],
        vocab_width: int,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        num_threads: int = 1,
        deadline_s: float = DEFAULT_DEADLINE_S,
    ) -> None:
        self._compiler = XgrammarCompiler(
            token_bytes, control_ids=control_ids, stop_ids=stop_ids, vocab_width=vocab_width
        )
        self._cache = CompileCache(
            self._compile, cache_bytes=cache_bytes, num_threads=num_threads, deadline_s=deadline_s
        )

    def compile(self, constraint: Constraint) -> Future[CompiledGrammar]:
        """The grammar, or `InvalidRequest` with the words of the check or of the compiler.

        Raises `EngineClosed` after `close`. Cancelling the future is safe at any time.
        """
        return self._cache.get(constraint)

    @property
    def compile_times(self) -> HistogramData:
        """Seconds that compilations took; what was found in the cache counts for nothing."""
        return self._cache.compile_times

    def close(self) -> None:
        """Fail all who wait with `EngineClosed`. Grammars given out stay usable."""
        self._cache.close()

    def _compile(self, constraint: Constraint) -> CompiledGrammar:
        check_constraint(constraint)
        return self._compiler.compile(constraint)
