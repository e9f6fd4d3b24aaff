"""Batches of tokens to batches of text, for many outputs at a time; ends none of them."""

from __future__ import annotations

from collections.abc import Callable

from ..ipc.to_detokenizer import TokenBatch
from ..ipc.to_tokenizer import TextBatch, TextOutput
from ..submission import text_chunk
from .incremental import IncrementalDetokenizer


class BatchDetokenizer:
    """The outputs of one epoch; an output is forgotten with its last message."""

    def __init__(self, visible_bytes: Callable[[int], bytes]) -> None:
        self._visible_bytes = visible_bytes
        self._outputs: dict[tuple[str, int], IncrementalDetokenizer] = {}

    @property
    def num_open(self) -> int:
        return len(self._outputs)

    def clear(self) -> None:
        """Forget every output: a new epoch begins."""
        self._outputs.clear()

    def take(self, batch: TokenBatch) -> TextBatch:
        """The text of `batch`, output for output."""
        for start in batch.starts:
            key = start.rid, start.choice
            assert key not in self._outputs, f"{key} starts twice"
            self._outputs[key] = IncrementalDetokenizer(
                self._visible_bytes, start.stops, start.stop_regex
            )
        outputs: list[TextOutput] = []
        for output in batch.outputs:
            key = output.rid, output.choice
            outputs.append(TextOutput(output.rid, text_chunk(self._outputs[key], output)))
            if output.finish is not None:
                del self._outputs[key]
        return TextBatch(batch.epoch, tuple(outputs))
