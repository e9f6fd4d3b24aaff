"""The exact validator on the JSON Schema Test Suite: what it decides, and what it can't and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.schemas.values import Value, read, write
from espalier.runtime.grammar.validation import validate_json

SUITE = Path(__file__).parents[3] / "shared/data/json_schema_test_suite_2020-12.jsonl"
pytestmark = pytest.mark.skipif(
    not SUITE.exists(), reason="the JSON Schema Test Suite is not beside the checkout"
)

Case = tuple[str, str, Value, list[Value]]


def cases(*, optional: str | None = None) -> list[Case]:
    """Of the core, or of the optional files that begin so."""
    found: list[Case] = []
    if not SUITE.exists():
        return found
    for line in SUITE.read_text().split("\n")[:-1]:  # its strings have other line ends
        entry = read(line)
        assert isinstance(entry, dict)
        name, tests = str(entry["file"]), entry["tests"]
        assert isinstance(tests, list)
        wanted = "/" not in name if optional is None else name.startswith(optional)
        if wanted:
            found.append((name, str(entry["description"]), entry["schema"], tests))
    return found


def verdicts(schema: Value, tests: list[Value]) -> list[tuple[str, bool, bool | None]]:
    """Of each test: what it is, whether it is valid, what the validator says."""
    text = write(schema)
    found: list[tuple[str, bool, bool | None]] = []
    for test in tests:
        assert isinstance(test, dict)
        verdict = validate_json(text, write(test["data"]))
        assert verdict.trouble or verdict.valid, verdict
        found.append((str(test["description"]), test["valid"] is True, verdict.valid))
    return found


FORMATS = {  # asserted by the validator, with what the suite has that it can't decide
    "date": 0,
    "date-time": 0,
    "duration": 0,
    "email": 0,
    "hostname": 38,  # of A-labels (`xn--`), which need the tables of IDNA
    "ipv4": 0,
    "ipv6": 0,
    "json-pointer": 0,
    "relative-json-pointer": 0,
    "time": 0,
    "uri": 0,
    "uri-reference": 0,
    "uuid": 0,
}


def is_other_policy(name: str, group: str, test: str) -> bool:
    """Formats are asserted here, and no meta-schema is known that leaves vocabularies out."""
    annotation = test.endswith("is only an annotation by default")
    return (name == "format" and annotation and group.removesuffix(" format") in FORMATS) or (
        group == "schema that uses custom metaschema with with no validation vocabulary"
        and test == "no validation: invalid number, but it still validates"
    )


@pytest.mark.parametrize(("name", "group", "schema", "tests"), cases(), ids=lambda v: str(v)[:60])
def test_the_core_is_decided_right(
    name: str, group: str, schema: Value, tests: list[Value]
) -> None:
    """All but what another server holds, and what is another policy."""
    for test, is_valid, verdict in verdicts(schema, tests):
        if verdict is None:
            assert "http://localhost:1234/" in write(schema), (group, test)
        elif is_other_policy(name, group, test):
            assert verdict is False
        else:
            assert verdict is is_valid, (group, test)


def test_little_of_the_core_can_not_be_decided() -> None:
    """References to another server."""
    undecided: dict[str, int] = {}
    for name, _, schema, tests in cases():
        num = sum(verdict is None for _, _, verdict in verdicts(schema, tests))
        if num:
            undecided[name] = undecided.get(name, 0) + num
    assert undecided == {"dynamicRef": 13, "refRemote": 31}


@pytest.mark.parametrize("name", FORMATS)
def test_formats_are_decided_right(name: str) -> None:
    num_undecided = 0
    for file, _, schema, tests in cases(optional="optional/format/"):
        if file == f"optional/format/{name}":
            for test, is_valid, verdict in verdicts(schema, tests):
                num_undecided += verdict is None
                assert verdict in (None, is_valid), test
    assert num_undecided == FORMATS[name]


@pytest.mark.parametrize(
    "file", ["ecmascript-regex", "non-bmp-regex", "bignum", "dependencies-compatibility", "id"]
)
def test_optional_files_are_decided_right(file: str) -> None:
    wrong = [
        (group, test)
        for name, group, schema, tests in cases(optional=f"optional/{file}")
        for test, is_valid, verdict in verdicts(schema, tests)
        if name == f"optional/{file}" and verdict is not is_valid
    ]
    assert wrong == []
