"""What is expected of a jump: what was seen at the same place of the same grammar."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from espalier.runtime.messages import JsonSchema, TokenizedRequest
from espalier.runtime.sampling.params import SamplingParams
from espalier.runtime.scheduler.depth import Depth
from espalier.runtime.scheduler.ends import EndMatcher
from espalier.runtime.scheduler.request import Request
from tests.fakes import visible_bytes
from tests.local_grammars import byte_grammars

SCHEMA = JsonSchema(
    json.dumps(
        {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 30}, "kind": {"enum": [1, 2]}},
            "required": ["name", "kind"],
        }
    )
)
MakeRequest = Callable[[int], Request]
BEFORE, NAME, BETWEEN = b'{"name":"', b"abcdefghij", b',"kind":'


@pytest.fixture
def request_of() -> MakeRequest:
    compiled = byte_grammars().compile(SCHEMA).result()

    def make(serial: int) -> Request:
        sampling = SamplingParams(max_new_tokens=200)
        message = TokenizedRequest(
            rid=f"r{serial}", input_ids=np.ones(1, np.int32), sampling=sampling
        )
        made = Request.accept(serial, message, EndMatcher(sampling, (), visible_bytes))
        made.guide = compiled.guide()
        return made

    return make


def test_it_is_known_by_place(request_of: MakeRequest) -> None:
    """Behind the last quote of a name and behind a kind text is forced, within a name none is."""
    depth = Depth(512)
    expected = [write(depth, request_of(serial)) for serial in range(20)][-1]
    assert max(expected[: len(NAME)]) < 0.1
    assert expected[-1] > 0.9


def write(depth: Depth, request: Request) -> list[float]:
    """What was expected at each sampled token of one document."""
    guide = request.guide
    assert guide is not None
    expected: list[float] = []

    def force(text: bytes) -> None:
        for byte in text:
            request.force(byte)
            assert guide.accept(byte)

    def sample(byte: int, forces: bytes = b"") -> None:
        expected.append(depth.likelihood(request))
        request.append(byte)
        assert guide.accept(byte)
        force(forces)
        depth.observe_token(request, jumped=bool(forces))

    force(BEFORE)
    for byte in NAME:
        sample(byte)
    sample(ord('"'), BETWEEN)
    sample(ord("1"), b"}")
    return expected
