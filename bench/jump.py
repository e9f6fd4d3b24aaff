"""Forward passes and time for each valid JSON document, with jump-forward and without.

    python -m bench.jump --json bench/out/jump.json
    python -m bench.jump --data REAL.jsonl        (60 schemas met in the wild, from a fixed seed)

Both engines write documents of the same schemas in turn, one stream and then 16 at once. The ideal
is computed from what came out: a token would be free if the text is forced and the tokenizer would
read it with this token whatever may follow; and the end where nothing else can come.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

import numpy as np

from bench.report import Row, publish, spread
from bench.schemas.data import read_groups
from bench.works import SCHEMA
from espalier.runtime.assembly import grammar_engines
from espalier.runtime.engine import Engine
from espalier.runtime.errors import InvalidRequest
from espalier.runtime.grammar.compile_job import compile_constraint
from espalier.runtime.grammar.guide import Guide
from espalier.runtime.messages import JsonSchema
from espalier.runtime.programs.backend import GenerateCall
from espalier.runtime.sampling.params import SamplingParams

NUM_SCHEMAS = 60
MIN_DOCUMENTS = 32
MAX_TOKENS = 200
_PLENTY = 10**6
_REST_S = 0.7  # an engine that has just become idle touches memory, beside the other one
_STRING = {"type": "string", "maxLength": 30}
_CALL = {
    "type": "object",
    "properties": {
        "name": {"enum": ["get_weather", "get_local_time", "search_documents"]},
        "arguments": {
            "type": "object",
            "properties": {"location": _STRING, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["location", "unit"],
        },
    },
    "required": ["name", "arguments"],
}
_ORDER = {
    "type": "object",
    "properties": {
        "customer": _STRING,
        "paid": {"type": "boolean"},
        "lines": {
            "type": "array",
            "minItems": 2,
            "maxItems": 3,
            "items": {
                "type": "object",
                "properties": {"article": _STRING, "count": {"type": "integer", "maximum": 99}},
                "required": ["article", "count"],
            },
        },
    },
    "required": ["customer", "paid", "lines"],
}
OWN = [SCHEMA, json.dumps(_CALL), json.dumps(_ORDER)]


@dataclass(frozen=True, slots=True)
class Document:
    """One that came out. ids: with the stop token; num_forced: those that jumps gave."""

    schema: str
    ids: tuple[int, ...]
    num_forced: int
    is_valid: bool


@dataclass(slots=True)
class Side:
    """What one engine has done of one work, over all rounds."""

    documents: list[Document] = field(default_factory=list[Document])
    passes: int = 0
    seconds: list[float] = field(default_factory=list[float])

    @property
    def num_valid(self) -> int:
        return sum(document.is_valid for document in self.documents)


async def _write(engine: Engine, schema: str, index: int) -> Document:
    message = {"role": "user", "content": f"Write one example as JSON, number {index}."}
    sampling = SamplingParams(max_new_tokens=MAX_TOKENS, temperature=0.7, seed=index)
    call = GenerateCall(
        input_ids=engine.codec.encode_chat([message]),
        sampling=sampling,
        constraint=JsonSchema(schema),
    )
    chunks = [chunk async for chunk in engine.generate(call)]
    report, usage = chunks[-1].grammar, chunks[-1].usage
    ids = tuple(token_id for chunk in chunks for token_id in chunk.ids)
    num_forced = 0 if usage is None else usage.forced_tokens
    return Document(schema, ids, num_forced, report is not None and report.valid is True)


async def _write_all(engine: Engine, schemas: Sequence[str], streams: int) -> list[Document]:
    """With so many going on at any time."""
    gate = asyncio.Semaphore(streams)

    async def one(index: int, schema: str) -> Document:
        async with gate:
            return await _write(engine, schema, index)

    return await asyncio.gather(*(one(i, schema) for i, schema in enumerate(schemas)))


def _run(engine: Engine, schemas: Sequence[str], streams: int, side: Side) -> None:
    engine.flush_cache()
    sleep(_REST_S)
    before, start = engine.stats.num_forward_passes, perf_counter()
    side.documents += asyncio.run(_write_all(engine, schemas, streams))
    side.seconds.append(perf_counter() - start)
    side.passes += engine.stats.num_forward_passes - before


# -- the ideal -------------------------------------------------------------------------------------


class Ideal:
    """How many tokens of a document no model would be needed for: whatever the grammar lets
    follow, the tokenizer would read the text with this token there."""

    def __init__(self, engine: Engine) -> None:
        codec = engine.codec
        self._encode = lru_cache(maxsize=100_000)(codec.encode)
        self._token_bytes = codec.token_bytes
        controls = codec.control_ids
        texts = [(t, i) for i, t in enumerate(codec.token_bytes) if t and i not in controls]
        self._sorted = sorted(texts)
        self._bytes = {text[0]: token_id for text, token_id in texts if len(text) == 1}
        self._row = np.zeros(-(-codec.vocab_size // 32), np.int32)
        self._engines = grammar_engines(codec, codec.vocab_size)

    def num_forced(self, document: Document) -> int:
        artefact = compile_constraint(JsonSchema(document.schema), self._engines)
        guide = self._engines.load(artefact).guide()
        count = 0
        for place, token_id in enumerate(document.ids):
            forced = guide.forced()
            if not forced:
                guide.fill(self._row, _PLENTY)
                bits = np.unpackbits(self._row.view(np.uint8), bitorder="little")
                count += int(bits.sum()) == 1
            elif forced.startswith(self._token_bytes[token_id]):
                before = b"".join(
                    self._token_bytes[i] for i in document.ids[max(0, place - 4) : place]
                )
                count += not self._may_be_read_otherwise(before, token_id, forced, guide)
            guide.accept(token_id)
        return count

    def _may_be_read_otherwise(
        self, before: bytes, token_id: int, forced: bytes, guide: Guide
    ) -> bool:
        """The forced text by itself; or by a token that begins before this one's end, and ends
        behind the forced text."""
        if not self._is_read_with(before, token_id, forced):
            return True
        ahead = guide.fork()
        if not all(ahead.accept(self._bytes[byte]) for byte in forced):
            return True
        for start in range(len(self._token_bytes[token_id])):
            begin = forced[start:]
            for index in range(bisect_left(self._sorted, (begin, 0)), len(self._sorted)):
                text, other = self._sorted[index]
                if not text.startswith(begin):
                    break
                if len(text) > len(begin) and self._accepts(ahead, text[len(begin) :]):
                    whole = (before + forced[:start] + text).decode("utf-8", "ignore")
                    if self._encode(whole)[-1:] == [other]:
                        return True
        return False

    def _is_read_with(self, before: bytes, token_id: int, forced: bytes) -> bool:
        done = 0
        for other in self._encode((before + forced).decode("utf-8", "ignore")):
            if done == len(before):
                return other == token_id
            done += len(self._token_bytes[other])
        return False

    def _accepts(self, guide: Guide, text: bytes) -> bool:
        ahead = guide.fork()
        return all(ahead.accept(self._bytes[byte]) for byte in text)


# -- the figures -----------------------------------------------------------------------------------


def measure(schemas: Sequence[str], rounds: int) -> list[Row]:
    with Engine() as with_jumps, Engine(jump_forward=False) as without:
        usable = _usable(with_jumps, schemas)
        ideal = Ideal(with_jumps)
        rows = [Row("schemas", len(usable), "", note=f"of {len(schemas)}")]
        usable *= -(-MIN_DOCUMENTS // len(usable))
        for streams in (1, 16):
            on, off = Side(), Side()
            for index in range(2 * rounds + 1):
                sides = [(with_jumps, on), (without, off)]
                for engine, side in sides if index % 2 else sides[::-1]:
                    _run(engine, usable, streams, side if index else Side())  # once to warm up
            rows += _rows(streams, on, off, ideal)
        return rows


def _usable(engine: Engine, schemas: Sequence[str]) -> list[str]:
    """Those that compile, and whose shortest document is no longer than is allowed here."""
    found: list[str] = []
    for schema in schemas:
        try:
            asyncio.run(_write(engine, schema, 0))
        except InvalidRequest:
            continue
        found.append(schema)
    return found


def _rows(streams: int, on: Side, off: Side, ideal: Ideal) -> list[Row]:
    work = f"{streams} stream" + "s" * (streams > 1)
    count = len(off.documents)
    least = sum(max(1, len(d.ids) - ideal.num_forced(d)) for d in on.documents) / count
    plain = sum(len(d.ids) for d in off.documents) / count
    ratios = [a / b for a, b in zip(on.seconds, off.seconds, strict=True)]
    rows = [
        Row(f"{work}: valid documents", on.num_valid + off.num_valid, "", note=f"of {2 * count}"),
        Row(f"{work}: tokens, without jumps", plain, "a document"),
        Row(f"{work}: passes that an ideal jump needs", least, "a document"),
    ]
    if streams == 1:
        passes_on, passes_off = on.passes / count, off.passes / count
        share = (passes_off - passes_on) / (passes_off - least)
        rows += [
            Row(f"{work}: passes without jumps", passes_off, "a document"),
            Row(f"{work}: passes with jumps", passes_on, "a document"),
            Row(f"{work}: share of the ideal saving", share, "", target=0.9),
        ]
        saved = 1 - passes_on / passes_off
    else:
        tokens = sum(len(d.ids) for d in on.documents)
        saved = sum(d.num_forced for d in on.documents) / tokens
        rows.append(Row(f"{work}: share of tokens that took no pass", saved, ""))
    rows.append(
        Row(
            f"{work}: time with jumps / without",
            median(ratios),
            "x",
            better="lower",
            note=spread(ratios),
        )
    )
    target = 0.8 if streams == 1 else 0.5
    share = (1 - median(ratios)) / saved
    return [*rows, Row(f"{work}: time saved / passes saved", share, "", target=target)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, metavar="FILE", help="schemas, one JSON a line")
    parser.add_argument("--schemas", type=int, default=NUM_SCHEMAS)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows there")
    args = parser.parse_args()
    schemas = OWN
    if args.data is not None:
        groups = read_groups(args.data)
        chosen = random.Random(7).sample(groups, min(args.schemas, len(groups)))
        schemas = [group.schema for group in chosen]
    publish("bench.jump", measure(schemas, args.rounds), args.json)


if __name__ == "__main__":
    main()
