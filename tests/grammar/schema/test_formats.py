"""Format languages by example, against Python's own readers, and against the public suite."""

from __future__ import annotations

import ipaddress
import json
import uuid
from collections import Counter
from datetime import date, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espalier.runtime.grammar.regular import Regex, matches, shortest
from espalier.runtime.grammar.schema.formats import UNENFORCEABLE, format_language

SUITE = Path(__file__).parents[4] / "shared" / "data" / "json_schema_test_suite_2020-12.jsonl"


def language(name: str) -> Regex:
    found = format_language(name)
    assert found is not None
    return found


@settings(deadline=None)
@given(st.dates())
def test_every_day_is_a_date(day: date) -> None:
    assert matches(language("date"), day.isoformat())


@settings(deadline=None)
@given(st.from_regex(r"\A[0-9]{4}-(0[0-9]|1[0-9])-[0-3][0-9]\Z"))
def test_only_days_are_dates(text: str) -> None:
    try:
        date.fromisoformat(text)
        is_day = True
    except ValueError:
        is_day = False
    assert matches(language("date"), text) == is_day


@settings(deadline=None)
@given(st.datetimes(), st.sampled_from(["Z", "+00:00", "-23:59"]))
def test_times(moment: datetime, offset: str) -> None:
    text = moment.isoformat() + offset
    assert matches(language("date-time"), text)
    assert matches(language("time"), text[11:])


@settings(deadline=None)
@given(st.ip_addresses(v=4))
def test_ipv4(address: ipaddress.IPv4Address) -> None:
    assert matches(language("ipv4"), str(address))


@settings(deadline=None)
@given(st.ip_addresses(v=6))
def test_ipv6(address: ipaddress.IPv6Address) -> None:
    assert matches(language("ipv6"), str(address))
    assert matches(language("ipv6"), address.exploded)


@settings(deadline=None)
@given(st.text("0a:.1", max_size=12) | st.from_regex(r"\A(:{0,2}[0-9a]{0,4}){2,9}\Z"))
def test_only_addresses_are_addresses(text: str) -> None:
    try:
        version: int | None = ipaddress.ip_address(text).version
    except ValueError:
        version = None
    assert matches(language("ipv6"), text) == (version == 6)
    assert matches(language("ipv4"), text) == (version == 4)


@settings(deadline=None)
@given(st.uuids())
def test_uuid(value: uuid.UUID) -> None:
    assert matches(language("uuid"), str(value))


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("time", ["00:00:00Z", "23:59:59.5+01:00"], ["24:00:00Z", "00:00:00", "23:59:60Z"]),
        ("duration", ["P1Y2M3DT4H5M6S", "PT1S", "P4W"], ["P", "PT", "P1Y2W", "P1D2Y", "P1Y1D"]),
        ("email", ["a.b+c@d-e.org"], ["a@", "@b", "a..b@c", ".a@c", "a b@c", "a@b..c"]),
        ("hostname", ["a", "a-b.c", "a" * 63, "1.2"], ["", "-a", "a-", "a.", "a" * 64, "xn--a"]),
        ("uri", ["http://a/b?c#d", "urn:x", "http://[::1]:8/"], ["/a", "a", "http://a b", "1:a"]),
        ("uri-reference", ["/a", "a", "", "//h/p", "?q", "http://a"], ["a b", "\\a", "a:b c"]),
        ("json-pointer", ["", "/", "/a~0b~1/0", "/é"], ["a", "/~", "/~2", "#/a"]),
        ("relative-json-pointer", ["0", "1/a", "2#"], ["", "/a", "01", "-1", "0##"]),
        ("uri-template", ["", "a/{b}{?c,d*}{e:3}"], ["{", "a}", "{}", "{a b}", "<", "{=a}"]),
        ("uuid", ["01234567-89AB-cdef-0123-456789abcdef"], ["0123456789abcdef0123456789abcdef"]),
    ],
)
def test_examples(name: str, inside: list[str], outside: list[str]) -> None:
    assert [text for text in inside if not matches(language(name), text)] == []
    assert [text for text in outside if matches(language(name), text)] == []


def test_a_long_hostname_is_one_that_dns_can_carry() -> None:
    for text in (".".join(["a" * 63] * 3), ".".join(["a" * 30] * 8)):
        assert matches(language("hostname"), text)
        assert not matches(language("hostname"), f"{text}.{'a' * 63}")


def test_other_names_are_annotations() -> None:
    assert format_language("color") is None
    for name in UNENFORCEABLE:
        assert format_language(name) is None


def test_languages_are_plain_and_made_once() -> None:
    for name in ("date", "date-time", "hostname", "email", "uri", "ipv6"):
        assert language(name) is language(name)
        assert language(name).is_plain
        assert shortest(language(name))


# Valid strings of the suite that are outside of our languages: the module says how narrow these
# are. The hostnames are A-labels, of which most of the suite's are invalid.
REFUSED = {
    "date-time": 4,
    "duration": 1,
    "email": 5,
    "hostname": 15,
    "idn-email": 8,
    "idn-hostname": 23,
    "iri": 6,
    "iri-reference": 5,
    "time": 7,
    "uri-template": 2,
}


@pytest.mark.skipif(not SUITE.exists(), reason="the suite's data is not beside the checkout")
def test_the_public_suite() -> None:
    refused: Counter[str] = Counter()
    accepted: list[tuple[str, str]] = []
    with SUITE.open() as lines:
        groups = [json.loads(line) for line in lines]
    for group in groups:
        name = group["schema"].get("format") if isinstance(group["schema"], dict) else None
        if not group["file"].startswith("optional/format/") or not isinstance(name, str):
            continue
        found = format_language(name)
        for test in group["tests"]:
            if found is None or not isinstance(test["data"], str):
                continue
            if matches(found, test["data"]) and not test["valid"]:
                accepted.append((name, test["data"]))
            elif test["valid"] and not matches(found, test["data"]):
                refused[name] += 1
    assert accepted == []
    assert refused == REFUSED
