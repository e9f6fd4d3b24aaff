"""What overlap hides: the device's idle time between steps, and a picture of it.

    python -m bench.overlap --json bench/out/overlap.json

Sixteen requests decode, free and held to a JSON schema, with overlap and without, in turn. Beside
the JSON it leaves a Chrome trace of each work (`.trace.json`) and one picture (`.png`).
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from time import perf_counter

import numpy as np

from bench.plots import panels, save
from bench.report import Row, publish, spread
from bench.timeline import (
    DEVICE,
    SCHEDULER,
    WAITING,
    Span,
    Timeline,
    WatchedBackend,
    WatchedRunner,
    WatchedScheduler,
)
from espalier.radix.cache import RadixCache
from espalier.runtime.assembly import grammar_engines
from espalier.runtime.config import EngineConfig, SchedulerConfig
from espalier.runtime.grammar.service import GrammarService
from espalier.runtime.loading import Model, load_model
from espalier.runtime.messages import JsonSchema, SubmitRequests, TokenizedRequest, TokenOutput
from espalier.runtime.runner.build import build_backend
from espalier.runtime.runner.device_runner import DeviceRunner
from espalier.runtime.runner.kv_pool import KVPool
from espalier.runtime.sampling.params import SamplingParams
from espalier.runtime.scheduler.control import AbortAll
from espalier.runtime.scheduler.sampling_rows import Vocabulary

POOL_TOKENS, CONTEXT_LEN = 8192, 1024
BATCH, PROMPT_LEN, NEW_TOKENS = 16, 64, 64
MAX_NEW_TOKENS = 300  # so that nothing ends, or has to be closed, while it is measured
SHOWN_STEPS = 6
SCHEMA = (
    '{"type":"array","minItems":14,"maxItems":40,'
    '"items":{"type":"object","properties":{"name":{"type":"string","maxLength":12},'
    '"age":{"type":"integer","minimum":0,"maximum":120}},"required":["name","age"],'
    '"additionalProperties":false}}'
)


class Bench:
    """One scheduler over the model, driven in this thread."""

    def __init__(self, model: Model, *, overlap: bool) -> None:
        self.timeline = Timeline()
        config = SchedulerConfig(overlap=overlap)
        pool = KVPool(model.config, POOL_TOKENS, "float32")
        backend = build_backend(
            model.config,
            model.weights,
            pool,
            config,
            context_len=CONTEXT_LEN,
            num_threads=None,
        )
        self._runner = DeviceRunner(WatchedBackend(backend, self.timeline))
        tokenizer = model.tokenizer
        self._grammars = GrammarService(grammar_engines(tokenizer, model.config.vocab_size))
        vocabulary = Vocabulary(
            width=model.config.vocab_size,
            size=tokenizer.vocab_size,
            eos_ids=tokenizer.eos_ids,
            visible_bytes=tokenizer.visible_bytes,
        )
        self._num_open = self._num_tokens = 0
        self._scheduler = WatchedScheduler(
            self.timeline,
            config,
            RadixCache(POOL_TOKENS),
            WatchedRunner(self._runner, self.timeline),
            self._grammars,
            vocabulary,
            self._take,
        )

    def _take(self, outputs: list[TokenOutput]) -> None:
        self._num_open -= sum(output.finish is not None for output in outputs)
        self._num_tokens += sum(len(output.ids) for output in outputs)

    def run(self, *, constrained: bool, salt: int) -> tuple[float, list[Span]]:
        """Seconds that a batch takes to so many tokens, and the spans of it."""
        rng = np.random.default_rng(salt)
        requests = [
            TokenizedRequest(
                rid=f"{salt}.{i}",
                input_ids=rng.integers(100, 40_000, PROMPT_LEN).astype(np.int32),
                sampling=SamplingParams(
                    max_new_tokens=MAX_NEW_TOKENS, temperature=1.0, seed=i, ignore_eos=True
                ),
                constraint=JsonSchema(SCHEMA) if constrained else None,
            )
            for i in range(BATCH)
        ]
        self._num_open, self._num_tokens = len(requests), 0
        self._scheduler.inbox.put(SubmitRequests(tuple(requests)))
        self.timeline.spans.clear()
        begin = perf_counter()
        while self._num_tokens < BATCH * NEW_TOKENS:
            self._scheduler.step(wait=True)
            assert self._num_open == BATCH, "one has ended"
        taken, spans = perf_counter() - begin, list(self.timeline.spans)
        self._scheduler.inbox.put(AbortAll("measured"))
        while self._num_open:
            self._scheduler.step()
        return taken, spans

    def close(self) -> None:
        self._runner.close()
        self._grammars.close()


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One decode step: from its forward's begin to the next one's, and how much of it was idle."""

    begin: float
    seconds: float
    busy: float

    @property
    def idle_share(self) -> float:
        return 1 - self.busy / self.seconds


def decode_steps(spans: list[Span]) -> list[StepTimes]:
    """The steps of the batch in which nothing but decodes was computed: after the longest ones."""
    device = [span for span in spans if span.track == DEVICE]
    forwards = [span for span in device if span.name == "forward"]
    decodes = forwards[-NEW_TOKENS + 4 : -2]  # all of the batch is under way, and none has ended
    found: list[StepTimes] = []
    for this, following in zip(decodes, decodes[1:], strict=False):
        busy = sum(s.seconds for s in device if this.begin <= s.begin < following.begin)
        found.append(StepTimes(this.begin, following.begin - this.begin, busy))
    return found


def draw(works: dict[str, list[Span]], path: Path) -> None:
    """Some steps of each work: the device above, the scheduler below."""
    colours = {"forward": "tab:blue", "sample": "tab:cyan", "wait": "0.85"}
    figure, axes = panels(len(works), width=11, height=2)
    for axis, (name, spans) in zip(axes, works.items(), strict=True):
        steps = decode_steps(spans)
        middle = len(steps) // 2
        begin, end = steps[middle].begin, steps[middle + SHOWN_STEPS].begin
        # Waits lie within the scheduler's phases, and are drawn over them.
        for track, row in ((SCHEDULER, 0), (WAITING, 0), (DEVICE, 1)):
            for span in spans:
                if span.track == track and span.end > begin and span.begin < end:
                    bar = [((span.begin - begin) * 1e3, span.seconds * 1e3)]
                    colour = colours.get(span.name, "tab:orange")
                    axis.broken_barh(bar, (row - 0.4, 0.8), facecolors=colour)
        axis.set_yticks([0, 1], ["scheduler", "device"])
        axis.set_xlim(0, (end - begin) * 1e3)
        axis.set_title(name, loc="left", fontsize=9)
    axes[-1].set_xlabel("ms (grey: the scheduler waits for the device)")
    save(figure, path)


def measure(model: Model, rounds: int) -> tuple[list[Row], dict[str, list[Span]]]:
    benches = {True: Bench(model, overlap=True), False: Bench(model, overlap=False)}
    rows: list[Row] = []
    kept: dict[str, list[Span]] = {}
    for constrained in (False, True):
        work = "constrained" if constrained else "free"
        seconds: dict[bool, list[float]] = {True: [], False: []}
        idle: dict[bool, list[float]] = {True: [], False: []}
        for index in range(rounds + 1):  # the first round warms up
            for overlap, bench in benches.items():
                taken, spans = bench.run(constrained=constrained, salt=index)
                if index:
                    seconds[overlap].append(taken)
                    idle[overlap] += [step.idle_share for step in decode_steps(spans)]
                kept[f"{work}, {'overlap' if overlap else 'no overlap'}"] = spans
        rows += _rows(work, seconds, idle)
    for bench in benches.values():
        bench.close()
    return rows, kept


def _rows(work: str, seconds: dict[bool, list[float]], idle: dict[bool, list[float]]) -> list[Row]:
    name = f"batch {BATCH}, {work}"
    tokens = BATCH * NEW_TOKENS
    pairs = zip(seconds[False], seconds[True], strict=True)
    ratios = [without / with_overlap for without, with_overlap in pairs]
    return [
        Row(
            f"{name}: device idle",
            100 * median(idle[True]),
            "% of a decode step",
            better="lower",
            target=2.0,
            note=f"{len(idle[True])} steps, mean {100 * mean(idle[True]):.2f}",
        ),
        Row(f"{name}: device idle, no overlap", 100 * median(idle[False]), "% of a decode step"),
        Row(f"{name}: overlap", tokens / median(seconds[True]), "tok/s"),
        Row(f"{name}: no overlap", tokens / median(seconds[False]), "tok/s"),
        Row(f"{name}: overlap / none", median(ratios), "x", target=1.0, note=spread(ratios)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows there")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds of each work")
    args = parser.parse_args()
    rows, works = measure(load_model(EngineConfig()), args.rounds)
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        draw(works, args.json.with_suffix(".png"))
        for name, spans in works.items():
            slug = name.replace(", ", "-").replace(" ", "-")
            Timeline(spans).write_chrome_trace(args.json.with_suffix(f".{slug}.trace.json"))
    publish("bench.overlap", rows, args.json)


if __name__ == "__main__":
    main()
