"""The engine in one process against ceilings, transformers, no cache, no schema, no overlap.

    python -m bench.step --json bench/out/step.json
    python -m bench.step --http --json bench/out/http.json    (HTTP against in process)

Ratios and both their sides come from this one run: the sides are measured in turn
(A B A B ...), and the medians are compared. The peer is transformers in float32 with the
same weights and the same number of threads.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from bench.constrained import constrained_rows
from bench.http import http_rows
from bench.kernels import kernel_rows
from bench.overlap_gain import overlap_rows
from bench.prompts import prompt
from bench.report import Row, median_row, publish, spread
from bench.works import SCHEMA, Run, measure
from espalier.runtime.engine import Engine
from espalier.runtime.hub.catalog import default_cache_dir
from espalier.runtime.hub.source import resolve_model
from espalier.runtime.messages import JsonSchema

PEER = "transformers f32"


class Transformers:
    """The peer, in this process."""

    def __init__(self, path: Path) -> None:
        loader: Any = AutoModelForCausalLM
        model = loader.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
        model.eval()
        self._model = model

    @torch.inference_mode()
    def generate(self, prompts: list[list[int]], new: int) -> Run:
        ids = torch.tensor(prompts)
        start = perf_counter()
        self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=False,
            pad_token_id=0,
        )
        return Run(perf_counter() - start, new * len(prompts), 0, new)


def against_peer(engine: Engine, peer: Transformers, rounds: int) -> list[Row]:
    """Decode, prefill and batch: ours and the peer's in turn."""
    works = {
        "decode, 1 stream": (1, 16, 48, 1.1),
        "prefill, 1,024 tokens": (1, 1024, 1, None),
        "batch 16, 134 in, 64 out": (16, 134, 64, 1.1),
    }
    rows: list[Row] = []
    for name, (count, length, new, target) in works.items():
        ours: list[float] = []
        theirs: list[float] = []
        passes = 0
        for index in range(rounds + 1):  # the first round warms both up
            salts = range(100 * index, 100 * index + count)
            prompts = [prompt(engine, length, salt) for salt in salts]
            engine.flush_cache()
            mine, other = measure(engine, prompts, new), peer.generate(prompts, new)
            if index:
                tokens = length if new == 1 else count * new
                ours.append(tokens / mine.seconds)
                theirs.append(tokens / other.seconds)
                passes = mine.forward_passes
        rows += [
            median_row(name, ours, "tok/s", f"{passes} forward passes"),
            median_row(f"{name}: {PEER}", theirs, "tok/s"),
            Row(f"{name}: ratio", median(ours) / median(theirs), "x", target=target, peer=PEER),
        ]
    return rows


def shared_prefix(engine: Engine, rounds: int) -> list[Row]:
    """16 requests on one 1,024-token prefix, 38 own tokens, 16 out: cache off, cold, warm."""
    off_engine = Engine(radix_cache=False)
    times: dict[str, list[Run]] = {"off": [], "cold": [], "warm": []}
    for index in range(rounds):
        trunk = prompt(engine, 1024, 7000 + index)

        def prompts(salt: int, trunk: list[int] = trunk) -> list[list[int]]:
            return [trunk + prompt(engine, 38, salt + i) for i in range(16)]

        engine.flush_cache()
        times["cold"].append(measure(engine, prompts(8000), 16))
        times["off"].append(measure(off_engine, prompts(8100), 16))
        times["warm"].append(measure(engine, prompts(8200), 16))
    off_engine.close()
    rows: list[Row] = []
    for name, runs in times.items():
        seconds = [run.seconds for run in runs]
        note = f"{runs[-1].computed_tokens:,} tokens computed, {runs[-1].forward_passes} passes"
        rows.append(
            Row(
                f"16 x (1,024 shared + 38), 16 out: {name}",
                median(seconds),
                "s",
                better="lower",
                note=f"{spread(seconds)}; {note}",
            )
        )
    off, cold, warm = (
        median([run.seconds for run in times[name]]) for name in ("off", "cold", "warm")
    )
    rows.append(Row("shared prefix: off / warm", off / warm, "x", target=8.0, peer="cache off"))
    rows.append(Row("shared prefix: off / cold", off / cold, "x", peer="cache off"))
    return rows


def json_and_free(engine: Engine, rounds: int) -> list[Row]:
    """Tokens per second under a JSON schema and without, at 1 and at 8 streams."""
    text = "Write a JSON record of a person called number {}:"
    rows: list[Row] = []
    for streams in (1, 8):
        ids = [engine.codec.encode(text.format(i)) for i in range(streams)]
        json_runs: list[Run] = []
        free_runs: list[Run] = []
        for index in range(rounds + 1):
            json_run = measure(engine, ids, 160, JsonSchema(SCHEMA))
            free_run = measure(engine, ids, max(1, json_run.output_tokens // streams))
            if index:
                json_runs.append(json_run)
                free_runs.append(free_run)
        json_rate = [run.tokens_per_s for run in json_runs]
        free_rate = [run.tokens_per_s for run in free_runs]
        note = f"{json_runs[-1].forward_passes} passes, {json_runs[-1].output_tokens} tokens"
        rows += [
            median_row(f"JSON, {streams} stream(s)", json_rate, "tok/s", note),
            median_row(f"free, {streams} stream(s)", free_rate, "tok/s"),
            Row(
                f"JSON / free, {streams} stream(s)",
                median(json_rate) / median(free_rate),
                "x",
                peer="the same length without a schema",
            ),
        ]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows there")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds of each work")
    parser.add_argument("--http", action="store_true", help="HTTP against in process, only")
    args = parser.parse_args()
    if args.http:
        with Engine() as engine:
            rows = http_rows(engine, args.rounds)
        publish("http", rows, args.json)
        return
    rows = kernel_rows(args.rounds)
    source = resolve_model("smollm2", cache_dir=default_cache_dir())
    with Engine(dtype="float32") as engine:
        rows += against_peer(engine, Transformers(source.path), args.rounds)
    with Engine() as engine:
        rows += shared_prefix(engine, min(2, args.rounds))
        rows += json_and_free(engine, args.rounds)
    rows += constrained_rows(args.rounds)
    rows += overlap_rows(args.rounds)
    publish("step", rows, args.json)


if __name__ == "__main__":
    main()
