"""Work for an engine, measured: so many prompts at once, to so many tokens each."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import perf_counter

from espalier.runtime.engine import Engine
from espalier.runtime.messages import Constraint
from espalier.runtime.programs.backend import GenerateCall
from espalier.runtime.sampling.params import SamplingParams

SCHEMA = """{"type":"object","properties":{"name":{"type":"string","maxLength":24},
"age":{"type":"integer","minimum":0,"maximum":120},
"tags":{"type":"array","items":{"type":"string","maxLength":12},"minItems":3,"maxItems":3},
"address":{"type":"object","properties":{"street":{"type":"string","maxLength":24},
"city":{"type":"string","maxLength":16},"zip":{"type":"string","pattern":"^[0-9]{5}$"}},
"required":["street","city","zip"],"additionalProperties":false}},
"required":["name","age","tags","address"],"additionalProperties":false}"""


@dataclass(frozen=True, slots=True)
class Run:
    """One measured piece of work."""

    seconds: float
    output_tokens: int
    computed_tokens: int
    forward_passes: int

    @property
    def tokens_per_s(self) -> float:
        return self.output_tokens / self.seconds


def measure(
    engine: Engine, prompts: list[list[int]], new: int, constraint: Constraint | None = None
) -> Run:
    """Run all prompts at once, greedily, to `new` tokens each (or the constraint's end)."""
    before, start = engine.stats, perf_counter()
    outputs = asyncio.run(_gather(engine, prompts, new, constraint))
    seconds, after = perf_counter() - start, engine.stats
    return Run(
        seconds,
        outputs,
        after.num_computed_tokens - before.num_computed_tokens,
        after.num_forward_passes - before.num_forward_passes,
    )


async def _gather(
    engine: Engine, prompts: list[list[int]], new: int, constraint: Constraint | None
) -> int:
    async def one(ids: list[int]) -> int:
        sampling = SamplingParams(
            max_new_tokens=new, temperature=0.0, ignore_eos=constraint is None
        )
        call = GenerateCall(input_ids=ids, sampling=sampling, constraint=constraint)
        return sum([len(chunk.ids) async for chunk in engine.generate(call)])

    return sum(await asyncio.gather(*map(one, prompts)))
