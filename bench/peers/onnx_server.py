"""ONNX Runtime GenAI's generator behind `token_server`; runs in the peer's environment.

python -m bench.peers.onnx_server MODEL_DIRECTORY PORT THREADS

It knows static batches only: requests of one length that wait together run together.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from bench.peers.token_server import serve

_GATHER_S = 0.002  # the requests of a batch come within it


@dataclass(slots=True)
class _Waiting:
    key: int
    prompt: list[int]
    new: int
    schema: str | None

    @property
    def shape(self) -> tuple[int, int, int | None]:
        """Requests of one shape are one batch; under a schema each is alone, as batches fail."""
        return len(self.prompt), self.new, None if self.schema is None else self.key


class OnnxRuntime:
    """One batch at a time, from its prefill to its end."""

    def __init__(self, model: str, threads: int) -> None:
        self._genai: Any = import_module("onnxruntime_genai")
        self._genai.disable_telemetry_events()
        self._numpy: Any = import_module("numpy")
        config = self._genai.Config(model)
        options = {"intra_op_num_threads": threads}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
        self._model = self._genai.Model(config)
        self._waiting: deque[_Waiting] = deque()
        self._batch: list[_Waiting] = []
        self._generator: Any = None
        self._missing = 0  # tokens that each of the batch still has to get

    def add(self, key: int, prompt: list[int], new: int, schema: str | None) -> None:
        self._waiting.append(_Waiting(key, prompt, new, schema))

    def step(self) -> Iterator[tuple[int, list[int] | None]]:
        if not self._missing:
            self._begin_batch()
        self._generator.generate_next_token()
        self._missing -= 1
        tokens = self._generator.get_next_tokens().tolist()
        for request, token in zip(self._batch, tokens, strict=True):
            yield request.key, [token]
        if self._missing and self._generator.is_done():
            self._missing = 0
            yield from ((request.key, None) for request in self._batch)

    def _begin_batch(self) -> None:
        shape = self._waiting[0].shape
        self._batch = [request for request in self._waiting if request.shape == shape]
        self._waiting = deque(request for request in self._waiting if request.shape != shape)
        prompt_len, new, _ = shape
        parameters = self._genai.GeneratorParams(self._model)
        length = prompt_len + new
        schema = self._batch[0].schema
        parameters.set_search_options(
            batch_size=len(self._batch),
            max_length=length,
            min_length=length if schema is None else 0,
            do_sample=False,
        )
        if schema is not None:
            parameters.set_guidance("json_schema", schema)
        self._generator = self._genai.Generator(self._model, parameters)
        prompts = [request.prompt for request in self._batch]
        self._generator.append_tokens(self._numpy.array(prompts, dtype=self._numpy.int32))
        self._missing = new


if __name__ == "__main__":
    _, model, port, threads = sys.argv
    serve(OnnxRuntime(model, int(threads)), int(port), _GATHER_S)
