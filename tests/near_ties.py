"""The one excuse for ids that differ between schedules on torch's kernels: a near-tie.

Where two runs first differ, the best two candidates must have been within 1e-4 of each other
in what was compared: logits for greedy choices, logits / temperature + noise for sampled ones.
Every such case is printed.
"""

from __future__ import annotations

import torch

from espalier.kernels.noise import gumbel_noise
from espalier.kernels.ops import AttentionRows
from espalier.kernels.torch_ops import TorchOps, TorchStep
from espalier.runtime.messages import TokenizedRequest
from espalier.runtime.models.config import ModelConfig
from espalier.runtime.models.llama import LlamaModel
from espalier.runtime.models.rope import rope_tables
from espalier.runtime.models.weights import LlamaWeights
from tests.harness import Outcome

NEAR_TIE = 1e-4


def explain_difference(
    config: ModelConfig, weights: LlamaWeights[torch.Tensor], expected: Outcome, got: Outcome
) -> None:
    """Assert that the ids are equal, or differ first at a near-tie."""
    if got.ids == expected.ids:
        return
    request = expected.request
    at = next(
        (i for i, (a, b) in enumerate(zip(expected.ids, got.ids, strict=False)) if a != b),
        min(len(expected.ids), len(got.ids)),
    )
    assert at < min(len(expected.ids), len(got.ids)), (
        f"{request.rid}: one output is a prefix of the other: {expected.ids} / {got.ids}"
    )
    context = [*request.input_ids.tolist(), *expected.ids[:at]]
    gap = candidate_gap(config, weights, request, context, expected.ids[at], got.ids[at])
    print(f"near-tie: {request.rid} token {at}: {expected.ids[at]} or {got.ids[at]}, gap {gap:.2e}")
    assert gap <= NEAR_TIE, f"{request.rid} differs at token {at}: gap {gap:.3e}"


def candidate_gap(
    config: ModelConfig,
    weights: LlamaWeights[torch.Tensor],
    request: TokenizedRequest,
    context: list[int],
    first: int,
    second: int,
) -> float:
    """How far apart two candidates are after `context`, as the sampler compares them."""
    logits = logits_after(config, weights, context)
    params = request.sampling
    pair = torch.tensor([first, second])
    scores = logits[pair]
    if params.temperature > 0:
        assert params.seed is not None
        noise = gumbel_noise(params.seed, request.choice, len(context), pair)
        scores = scores / params.temperature + noise
    return float((scores[0] - scores[1]).abs())


def logits_after(
    config: ModelConfig, weights: LlamaWeights[torch.Tensor], context: list[int]
) -> torch.Tensor:
    """Raw logits_V of the token after `context`, from one whole forward pass."""
    length = len(context)
    model = LlamaModel(config, weights)
    shape = (config.num_layers, length, config.num_kv_heads, config.head_dim)
    slots = torch.arange(length)
    cos, sin = rope_tables(config.rope, config.head_dim, length)
    rows = AttentionRows.of(slots[None], [0], [0], [length])
    step = TorchStep(torch.tensor(context), slots, cos, sin, rows)
    ops = TorchOps(model.heads, torch.empty(shape), torch.empty(shape), step)
    with torch.inference_mode():
        return model.logits(ops, model.forward(ops)[-1:])[0]
