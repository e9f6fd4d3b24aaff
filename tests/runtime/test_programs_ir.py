"""The IR's JSON form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espalier.runtime.errors import InvalidRequest
from espalier.runtime.messages import Choice, Ebnf, JsonSchema, LogprobOptions, Regex
from espalier.runtime.programs.ir import (
    Append,
    Fork,
    Gen,
    Join,
    RoleBegin,
    RoleEnd,
    Select,
    decode_nodes,
    encode_nodes,
)
from espalier.runtime.sampling.params import SamplingParams

texts = st.text(max_size=12)
names = st.none() | st.text(min_size=1, max_size=8)
samplings = st.builds(
    SamplingParams,
    max_new_tokens=st.integers(0, 2**31 - 1),
    temperature=st.floats(0, 100),
    top_p=st.floats(0.01, 1),
    logit_bias=st.dictionaries(st.integers(0, 50_000), st.floats(-100, 100), max_size=3),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    stop=st.lists(texts, max_size=3).map(tuple),
    stop_token_ids=st.lists(st.integers(0, 50_000), max_size=3).map(tuple),
    ignore_eos=st.booleans(),
    n=st.integers(1, 128),
)
constraints = st.one_of(
    st.none(),
    st.builds(JsonSchema, texts),
    st.builds(Regex, texts),
    st.builds(Ebnf, texts),
    st.builds(Choice, st.lists(texts, max_size=3).map(tuple)),
)
logprob_options = st.none() | st.builds(LogprobOptions, top=st.integers(0, 20))
nodes = st.one_of(
    st.builds(Append, texts, st.booleans()),
    st.builds(RoleBegin, texts),
    st.builds(RoleEnd),
    st.builds(
        Gen, name=names, sampling=samplings, constraint=constraints, logprobs=logprob_options
    ),
    st.builds(
        Select,
        name=names,
        choices=st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=4).map(tuple),
        method=st.sampled_from(["token_length_normalized", "greedy_token_selection"]),
    ),
    st.builds(Fork, st.integers(1, 10_000)),
    st.builds(Join, st.sampled_from(["gather_variable", "concate_and_append"])),
)


@given(st.lists(nodes, max_size=6))
def test_json_form_round_trips(program: list[Append]) -> None:
    assert decode_nodes(encode_nodes(program)) == tuple(program)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[", "truncated"),
        ('[{"type":"shell"}]', "[0]"),
        ('[{"type":"fork","size":0}]', "[0].size"),
        ('[{"type":"select","choices":[]}]', "[0].choices"),
        ('[{"type":"select","choices":["a",""]}]', "[0].choices"),
        ('[{"type":"gen","sampling":{"temprature":1}}]', "[0].sampling"),
        ('[{"type":"join","mode":"zip"}]', "[0].mode"),
    ],
)
def test_what_is_not_a_program_is_refused_with_its_path(text: str, where: str) -> None:
    with pytest.raises(InvalidRequest, match="not a program") as raised:
        decode_nodes(text)
    assert where in str(raised.value)
