"""The schema bench: its spellings, its counting, its processes, and what it reports."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.schemas.__main__ import main, measure, total_rows
from bench.schemas.contenders import CONTENDERS
from bench.schemas.counting import Outcome, Tally, outcomes, worst
from bench.schemas.data import Group, Instance, read_groups
from bench.schemas.declared import in_declared_order
from bench.schemas.figures import keyword_rows, keyword_table
from bench.schemas.judging import DidNotStart, Judge, Judged
from bench.schemas.spellings import MAX_PERMUTATIONS, orders, spellings
from bench.schemas.values import Number, Style, Value, plain, read, write

FAKE = "tests.schema_contenders:Exactly"


def texts(instance: str, schema: str = "{}") -> set[str]:
    found = list(spellings(read(instance), read(schema)))
    assert len(found) == len(set(found))
    return set(found)


# -- spellings ---------------------------------------------------------------------------------


def test_spaces_escapes_and_numbers_vary() -> None:
    assert texts('{"é": [1.0, 2]}') == {
        f'{{"{key}":{space}[{one},{space}2]}}'
        for key in ("é", r"\u00e9")
        for space in ("", " ")
        for one in ("1.0", "1")
    }


def test_keys_stand_in_every_order() -> None:
    assert texts('{"b": 1, "a": {"d": 2, "c": 3}}') >= {
        '{"b":1,"a":{"d":2,"c":3}}',
        '{"b":1,"a":{"c":3,"d":2}}',
        '{"a":{"d":2,"c":3},"b":1}',
        '{"a":{"c":3,"d":2},"b":1}',
    }


def test_a_lone_surrogate_is_only_written_as_an_escape() -> None:
    assert texts(r'"\ud800"') == {r'"\ud800"'}


def test_permutations_are_bounded() -> None:
    instance = read(json.dumps([{key: 1 for key in "edcba"}] * 40))
    assert len(list(orders(instance, {}))) <= 4 + MAX_PERMUTATIONS


@pytest.mark.parametrize(
    ("given", "spelled"),
    [
        ("1.0", "1"),
        ("1e2", "100"),
        ("-0", "0"),
        ("-0.0e5", "0"),
        ("1.50", "1.5"),
        ("12E-3", "0.012"),
        ("-7", "-7"),
        ("100", "100"),
        ("1e400", "1" + 400 * "0"),
        ("1e401", "1e401"),
        ("1e-999999", "1e-999999"),
    ],
)
def test_plain_numbers(given: str, spelled: str) -> None:
    assert plain(Number(given)) == spelled


SCHEMA: dict[str, Any] = {
    "$ref": "#/$defs/base",
    "properties": {"z": {}, "y": {"items": {"properties": {"n": {}, "m": {}}}}},
    "$defs": {"base": {"properties": {"x": {}}, "required": ["w"]}},
}


@pytest.mark.parametrize(("own_first", "keys"), [(True, "zyxwa"), (False, "xwzya")])
def test_declared_order_follows_references(own_first: bool, keys: str) -> None:
    instance = read('{"a": 1, "w": 2, "x": 3, "y": [{"m": 1, "n": 2}], "z": 4}')
    found = in_declared_order(instance, read(json.dumps(SCHEMA)), own_first=own_first)
    assert isinstance(found, dict) and "".join(found) == keys
    assert write(found["y"]) == '[{"n":2,"m":1}]'


def test_a_schema_that_refers_to_itself_has_an_order() -> None:
    schema = read('{"$ref": "#", "properties": {"b": {"$ref": "#"}, "a": {}}}')
    found = in_declared_order(read('{"a": 1, "b": {"a": 2, "b": 3}}'), schema, own_first=True)
    assert write(found) == '{"b":{"b":3,"a":2},"a":1}'


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


def exactly(text: str) -> Any:
    return json.loads(text, parse_int=Decimal, parse_float=Decimal)


@settings(deadline=None)
@given(values)
def test_every_spelling_stands_for_the_instance(value: Any) -> None:
    given = json.dumps(value)
    for text in spellings(read(given), {}):
        assert exactly(text) == exactly(given)


@settings(deadline=None)
@given(values)
def test_reading_and_writing_keeps_the_spelling(value: Any) -> None:
    text = json.dumps(value)
    assert write(read(text), Style(is_spaced=True, is_ascii=True)) == text


# -- counting ----------------------------------------------------------------------------------


def group(*validities: bool, schema: Value = None, is_suite: bool = True) -> Group:
    instances = tuple(Instance(f"{i}", f"{i}", valid) for i, valid in enumerate(validities))
    return Group("g", ("k",), write(schema), instances, is_suite)


RIGHT, ACCEPTED, REFUSED = Outcome.RIGHT, Outcome.ACCEPTED_INVALID, Outcome.REFUSED_VALID


def test_each_instance_has_an_outcome() -> None:
    judged = Judged(("0", None, "2", None), compile_s=0.1)
    assert outcomes(group(True, True, False, False), judged) == [RIGHT, REFUSED, ACCEPTED, RIGHT]


@pytest.mark.parametrize(
    ("judged", "has_valid", "outcome"),
    [
        (Judged(refusal="no"), True, Outcome.NOT_COMPILED),
        (Judged(refusal="no"), False, Outcome.RIGHT),
        (Judged(is_late=True), True, Outcome.LATE),
        (Judged(is_late=True), False, Outcome.LATE),
    ],
)
def test_what_is_not_compiled(judged: Judged, has_valid: bool, outcome: Outcome) -> None:
    assert outcomes(group(has_valid, False), judged) == [outcome] * 2


def test_a_schema_is_as_bad_as_its_worst_instance() -> None:
    assert worst([RIGHT, REFUSED, ACCEPTED, RIGHT]) is ACCEPTED
    assert worst([RIGHT, REFUSED]) is REFUSED
    assert worst([]) is RIGHT


def test_the_suite_counts_instances_and_others_count_schemas() -> None:
    suite, real = Tally(), Tally()
    suite.add(group(True, True), [RIGHT, REFUSED])
    real.add(group(True, True, is_suite=False), [RIGHT, REFUSED])
    assert dict(suite.total) == {RIGHT: 1, REFUSED: 1} == dict(suite.by_keyword["k"])
    assert dict(real.total) == {REFUSED: 1} == dict(real.by_keyword["k"])


# -- data --------------------------------------------------------------------------------------


def write_data(file: Path) -> Path:
    tests = [{"description": "t", "data": 1.0, "valid": True}]
    entries: list[dict[str, Any]] = [
        {"file": "enum", "description": "d", "schema": {"enum": [1.0]}, "tests": tests},
        {"file": "optional/bignum", "description": "d", "schema": {}, "tests": tests},
        {
            "name": "wild",
            "schema": {"items": [{"maximum": 5}], "default": {"pattern": "x"}},
            "tests": tests,
        },
    ]
    file.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return file


def test_both_kinds_of_data_are_read(tmp_path: Path) -> None:
    suite, wild = read_groups(write_data(tmp_path / "data.jsonl"))
    assert (suite.name, suite.keywords, suite.is_suite) == ("enum: d", ("enum",), True)
    assert (wild.name, wild.keywords, wild.is_suite) == ("wild", ("items", "maximum"), False)
    assert suite.schema == '{"enum":[1.0]}' and suite.instances[0] == Instance("t", "1.0", True)


def test_data_is_narrowed_to_a_keyword_and_a_number(tmp_path: Path) -> None:
    file = write_data(tmp_path / "data.jsonl")
    assert [each.name for each in read_groups(file, only="maximum")] == ["wild"]
    assert [each.name for each in read_groups(file, limit=1)] == ["enum: d"]


# -- processes ---------------------------------------------------------------------------------


@pytest.fixture
def judge() -> Iterator[Judge]:
    judge = Judge("fake", FAKE, deadline_s=0.5)
    yield judge
    judge.close()


def test_a_contender_answers_for_each_instance(judge: Judge) -> None:
    schema: Value = {"act": "print", "texts": ["1", "2"]}
    for _ in range(2):
        judged = judge.judge(group(True, True, False, schema=schema))
        assert judged.accepted == (None, "1", "2") and judged.compile_s is not None


@pytest.mark.parametrize(
    ("act", "refusal"),
    [
        ("refuse", "it won't"),
        ("raise", "crashed: RuntimeError: it can't"),
        ("crash", "crashed: status -11"),
    ],
)
def test_whatever_a_contender_does_is_an_answer(judge: Judge, act: str, refusal: str) -> None:
    assert judge.judge(group(True, schema={"act": act})) == Judged(refusal=refusal)
    assert judge.judge(group(True, schema={"texts": ["0"]})).accepted == ("0",)


def test_a_late_contender_is_killed_and_the_next_schema_is_compiled(judge: Judge) -> None:
    assert judge.judge(group(True, schema={"act": "hang"})) == Judged(is_late=True)
    assert judge.judge(group(True, schema={"texts": ["0"]})).accepted == ("0",)


def test_a_contender_that_is_not_there_is_no_result() -> None:
    with pytest.raises(DidNotStart, match="no such engine"):
        Judge("absent", "tests.schema_contenders:Absent", 1.0).judge(group(True))


# -- the bare engines --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["xgrammar", "xgrammar-open", "llguidance"])
def test_a_bare_engine_enforces_what_it_does(name: str) -> None:
    schema: Value = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    texts = ('{"a":1}', '{"a":"x"}', "[]", '{"a":1')
    instances = tuple(Instance("", text, index == 0) for index, text in enumerate(texts[:3]))
    judge = Judge(name, CONTENDERS[name], deadline_s=30.0)
    try:
        judged = judge.judge(Group("g", (), write(schema), instances, is_suite=True))
        assert [text is not None for text in judged.accepted] == [True, False, False]
        assert judge.judge(group(True, schema={"type": "object", "minItems": "x"})) is not None
    finally:
        judge.close()


# -- reports -----------------------------------------------------------------------------------


def test_results_become_rows_and_tables() -> None:
    groups = [
        group(True, False, schema={"texts": ["0", "1"]}),
        group(True, schema={"act": "refuse"}, is_suite=False),
    ]
    results = measure(groups, [Judge("espalier", FAKE, 5.0), Judge("other", FAKE, 5.0)])
    rows = {row.name: row for row in total_rows(results, is_whole=True)}
    right = rows["suite pairs right: espalier"]
    assert (right.value, right.target, right.met) == (1, 1080, "no")
    assert rows["suite pairs accepted invalid: espalier"].met == "no"
    assert rows["suite pairs accepted invalid: other"].target is None
    assert rows["real schemas not compiled: other"].value == 1
    assert rows["real schemas all right: espalier"].value == 0
    assert rows["compile p99: other / espalier"].value > 0
    assert [failure["outcome"] for failure in results.failures] == 2 * ["accepted invalid"] + (
        2 * ["not compiled"]
    )
    [ours, _] = keyword_rows("suite", results.suite)
    assert (ours.name, ours.value) == ("suite, k: espalier", 1)
    assert ours.note == "of 2, 1 accepted invalid"
    assert keyword_table("suite", results.suite).row_count == 2


def test_the_bench_runs_on_an_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, out, failures = (tmp_path / name for name in ("data.jsonl", "out.json", "failures"))
    write_data(data)
    arguments = ["--contenders", "llguidance", "--json", str(out), "--failures", str(failures)]
    monkeypatch.setattr(sys, "argv", ["schemas", "--data", str(data), *arguments])
    main()
    rows = {row["name"]: row["value"] for row in json.loads(out.read_text())["rows"]}
    assert rows["suite pairs right: llguidance"] == 1
    assert rows["suite, enum: llguidance"] == 1
    assert failures.read_text() == ""
