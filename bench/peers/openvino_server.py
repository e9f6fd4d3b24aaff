"""OpenVINO GenAI's continuous batching behind `token_server`; runs in the peer's environment.

python -m bench.peers.openvino_server MODEL_DIRECTORY PORT THREADS
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from bench.peers.token_server import serve

_CACHE_GB = 2


class OpenVino:
    """A pipeline with prefix caching that requests join and leave at any step."""

    def __init__(self, model: str, threads: int, *, is_lossless: bool) -> None:
        """is_lossless: float32 throughout. By default it multiplies in bfloat16 where the processor
        has instructions for that, whatever the weights are."""
        genai: Any = import_module("openvino_genai")
        self._openvino: Any = import_module("openvino")
        self._numpy: Any = import_module("numpy")
        self._generation_config = genai.GenerationConfig
        self._structure = genai.StructuredOutputConfig
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = _CACHE_GB
        scheduler.enable_prefix_caching = True
        properties: dict[str, object] = {"INFERENCE_NUM_THREADS": threads}
        if is_lossless:
            properties["INFERENCE_PRECISION_HINT"] = "f32"
        self._pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)
        self._handles: dict[int, Any] = {}

    def add(self, key: int, prompt: list[int], new: int, schema: str | None) -> None:
        config = self._generation_config()
        config.max_new_tokens = new
        if schema is None:
            config.ignore_eos = True
        else:
            config.structured_output_config = self._structure(json_schema=schema)
            config.eos_token_id = self._pipeline.get_tokenizer().get_eos_token_id()
        config.do_sample = False
        ids = self._openvino.Tensor(self._numpy.array([prompt], dtype=self._numpy.int64))
        self._handles[key] = self._pipeline.add_request(key, ids, config)

    def step(self) -> Iterator[tuple[int, list[int] | None]]:
        self._pipeline.step()
        for key, handle in list(self._handles.items()):
            if handle.can_read():
                [output] = handle.read().values()
                yield key, list(output.generated_ids)
            if handle.get_status().name != "RUNNING" and not handle.can_read():
                del self._handles[key]
                yield key, None


if __name__ == "__main__":
    _, model, port, threads, weights = sys.argv
    serve(OpenVino(model, int(threads), is_lossless=weights == "f32"), int(port))
