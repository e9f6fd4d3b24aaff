"""How each request's next token is to be sampled, from its settled state."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ..grammar.filling import fill_masks
from ..grammar.guide import Guide
from ..grammar.token_masks import Bitmask
from ..sampling.sampler import SampleRow
from .ends import VisibleBytes
from .request import Request
from .step import StepRow


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What the scheduler knows of token ids.

    width: columns of the logits; ids from `size` on exist in the model only and are never
    sampled. eos_ids end a generation. visible_bytes: an id's part of the output text.
    """

    width: int
    size: int
    eos_ids: Collection[int]
    visible_bytes: VisibleBytes

    @property
    def num_bitmask_words(self) -> int:
        return (self.width + 31) // 32


def sample_rows(
    work: Mapping[int, tuple[Request, StepRow]], vocabulary: Vocabulary
) -> dict[int, SampleRow]:
    """The sampler's view of each request, for the token at position `row.end`."""
    guides: list[Guide] = []
    lefts: list[int] = []
    indices: list[int] = []
    for index, (request, _) in work.items():
        if request.guide is not None:
            guides.append(request.guide)
            lefts.append(request.message.sampling.max_new_tokens - request.num_outputs)
            indices.append(index)
    masks = fill_masks(guides, lefts, vocabulary.num_bitmask_words) if guides else []
    mask_of = dict(zip(indices, masks, strict=True))
    return {
        index: _sample_row(request, row, mask_of.get(index), vocabulary)
        for index, (request, row) in work.items()
    }


def _sample_row(
    request: Request, row: StepRow, bitmask: Bitmask | None, vocabulary: Vocabulary
) -> SampleRow:
    message, params = request.message, request.message.sampling
    assert params.seed is not None, "the client side draws seeds"
    options = message.logprobs
    penalised = (
        params.repetition_penalty != 1.0
        or params.frequency_penalty != 0.0
        or params.presence_penalty != 0.0
    )
    return SampleRow(
        params=params,
        seed=params.seed,
        choice=message.choice,
        position=row.end,
        prompt_ids=request.ids[: request.prompt_len] if penalised else None,
        output_ids=request.ids[request.prompt_len : request.num_ids] if penalised else None,
        banned=_banned(request, vocabulary),
        bitmask=bitmask,
        num_top=options.top if options is not None and options.output else None,
    )


def _banned(request: Request, vocabulary: Vocabulary) -> tuple[int, ...]:
    """Ids that the model has and the tokenizer not; ends, before `min_new_tokens`.

    A grammar decides itself where it may end, so its requests have no banned ends.
    """
    beyond = range(vocabulary.size, vocabulary.width)
    too_early = request.num_outputs < request.message.sampling.min_new_tokens
    if request.guide is not None or not too_early:
        return tuple(beyond)
    ends = (i for i in request.ends.end_ids if 0 <= i < vocabulary.size)
    return (*ends, *beyond)
