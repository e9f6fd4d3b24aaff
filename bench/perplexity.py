"""What quantised weights cost: perplexity of one text in float32, int8 and q4.

    python -m bench.perplexity --json bench/out/perplexity.json

The text is Python's own reference (`pydoc_data.topics`), or a file's; windows of 1,024 tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import math
from pathlib import Path
from pydoc_data.topics import topics  # pyright: ignore[reportMissingTypeStubs]

from bench.report import Row, publish
from espalier.runtime.config import WeightDtype
from espalier.runtime.engine import Engine
from espalier.runtime.messages import LogprobOptions
from espalier.runtime.programs.backend import GenerateCall
from espalier.runtime.sampling.params import SamplingParams

WINDOW_LEN = 1024
TARGETS: dict[WeightDtype, float | None] = {"float32": None, "int8": 1.01, "q4": 1.05}


def python_reference() -> str:
    return "\n".join(text for _, text in sorted(topics.items()))


async def negative_log_likelihoods(engine: Engine, ids: list[int]) -> list[float]:
    """Of every token of a window but the first."""
    call = GenerateCall(
        input_ids=ids,
        sampling=SamplingParams(max_new_tokens=0),
        logprobs=LogprobOptions(output=False, prompt_start=0),
    )
    found: list[float] = []
    async for chunk in engine.generate(call):
        for entry in chunk.prompt_logprobs or ():
            if entry.logprob is not None:
                found.append(-entry.logprob)
    assert len(found) == len(ids) - 1, (len(found), len(ids))
    return found


def perplexity(dtype: WeightDtype, text: str, num_tokens: int) -> float:
    with Engine(dtype=dtype, kv_pool_tokens=4 * WINDOW_LEN, radix_cache=False) as engine:
        ids = engine.codec.encode(text)[:num_tokens]
        assert len(ids) == num_tokens, f"the text has only {len(ids)} tokens"
        losses: list[float] = []
        for start in range(0, num_tokens, WINDOW_LEN):
            window = ids[start : start + WINDOW_LEN]
            losses += asyncio.run(negative_log_likelihoods(engine, window))
    return math.exp(sum(losses) / len(losses))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows there")
    parser.add_argument("--text", type=Path, metavar="FILE", help="another text")
    parser.add_argument("--tokens", type=int, default=20 * WINDOW_LEN)
    args = parser.parse_args()
    text = args.text.read_text() if args.text else python_reference()
    values = {dtype: perplexity(dtype, text, args.tokens) for dtype in TARGETS}
    rows = [
        Row(f"perplexity: {dtype}", v, "", better="lower", note=f"{v:.4f}")
        for dtype, v in values.items()
    ]
    for dtype, target in TARGETS.items():
        if target is not None:
            ratio = values[dtype] / values["float32"]
            rows.append(
                Row(f"{dtype} / float32", ratio, "x", better="lower", target=target, peer="float32")
            )
    publish("perplexity", rows, args.json)


if __name__ == "__main__":
    main()
