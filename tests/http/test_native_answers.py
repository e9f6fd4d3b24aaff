"""What answers of `/generate` show of their tokens."""

from __future__ import annotations

from typing import Any, cast

import pytest

from espalier.runtime.http.native_answers import Answers, StreamedChoice
from espalier.runtime.http.native_calls import Ask
from espalier.runtime.messages import FinishReason, Usage
from espalier.runtime.programs.backend import GenerateCall, GenerateChunk
from espalier.runtime.sampling.params import SamplingParams
from tests.inprocess import smollm2_tokenizer


@pytest.mark.parametrize(
    ("deltas", "forced"), [(False, [[1], [1], [1, 3, 4]]), (True, [[1], [], [0, 1]])]
)
def test_forced_tokens_are_marked_by_their_places_in_the_ids_shown(
    deltas: bool, forced: list[list[int]]
) -> None:
    call = GenerateCall(input_ids=[1, 2], sampling=SamplingParams())
    ask = Ask(
        call=call,
        rid="a",
        no_stop_trim=False,
        text_in_logprobs=False,
        prompt_param="input_ids",
        sampling_param="sampling_params",
    )
    choice = StreamedChoice(Answers(ask, smollm2_tokenizer()), deltas=deltas)
    usage = Usage(prompt_tokens=2, completion_tokens=5, cached_tokens=0, forced_tokens=3)
    end = FinishReason(kind="stop", matched=2)
    chunks = [
        GenerateChunk(text="ab", ids=(10, 11), forced=(1,)),
        GenerateChunk(text="c", ids=(12,)),
        GenerateChunk(text="de", ids=(13, 14), forced=(0, 1), finish=end, usage=usage),
    ]
    found: list[list[int]] = []
    for chunk in chunks:
        event = cast("dict[str, Any]", choice.event(chunk, 1.0))
        found.append(list(event["meta_info"].get("forced", ())))
        assert ("forced" in event["meta_info"]) == bool(found[-1])
    assert found == forced
