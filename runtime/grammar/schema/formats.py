"""The formats of JSON Schema as regular languages, each within what its RFC allows.

Narrower than the RFC, so that other readers agree and no loop is endless: years begin at 0001,
no leap seconds, upper-case `T` and `Z`, at most 9 digits of a fraction or a count. Hostnames
have up to three labels of 63 characters or eight of 30, and none with hyphens at its third and
fourth place. Local parts of e-mail addresses have no quotes. Internationalised formats are
their ASCII parts. `regex` is not a regular language: it can't be enforced.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from ..regular import Regex, whole_language

UNENFORCEABLE: Final = frozenset({"regex"})

_YEAR = r"(?:[1-9]\d{3}|0[1-9]\d{2}|00[1-9]\d|000[1-9])"
_FOURTHS = "(?:0[48]|[2468][048]|[13579][26])"  # two digits that 4 divides, but 00
_LONG_MONTH = r"(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])"
_SHORT_MONTH = r"(?:0[469]|11)-(?:0[1-9]|[12]\d|30)"
_FEBRUARY = r"02-(?:0[1-9]|1\d|2[0-8])"
_DATE = (
    rf"(?:{_YEAR}-(?:{_LONG_MONTH}|{_SHORT_MONTH}|{_FEBRUARY})"
    rf"|(?:\d\d{_FOURTHS}|{_FOURTHS}00)-02-29)"
)
_HOUR_MINUTE = r"(?:[01]\d|2[0-3]):[0-5]\d"
_TIME = rf"{_HOUR_MINUTE}:[0-5]\d(?:\.\d{{1,9}})?(?:Z|[+-]{_HOUR_MINUTE})"

_COUNT = r"\d{1,9}"
_CLOCK = rf"T(?:{_COUNT}H(?:{_COUNT}M(?:{_COUNT}S)?)?|{_COUNT}M(?:{_COUNT}S)?|{_COUNT}S)"
_DAYS = rf"(?:{_COUNT}Y(?:{_COUNT}M(?:{_COUNT}D)?)?|{_COUNT}M(?:{_COUNT}D)?|{_COUNT}D)"
_DURATION = rf"P(?:{_DAYS}(?:{_CLOCK})?|{_CLOCK}|{_COUNT}W)"

_ALNUM = "[A-Za-z0-9]"
_INNER = "[A-Za-z0-9-]"


def _label(max_length: int) -> str:
    """A label whose third and fourth characters are not both hyphens."""
    pair = f"(?:{_ALNUM}{_INNER}|-{_ALNUM})"
    longer = f"{_INNER}{pair}{_INNER}{{0,{max_length - 5}}}{_ALNUM}"
    return f"{_ALNUM}(?:{_ALNUM}|{_INNER}{_ALNUM}|{_INNER}{{2}}{_ALNUM}|{longer})?"


_HOSTNAME = rf"(?:{_label(63)}(?:\.{_label(63)}){{0,2}}|{_label(30)}(?:\.{_label(30)}){{0,7}})"
_ATEXT = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
_LOCAL = rf"(?:{_ATEXT}{{1,64}}|{_ATEXT}{{1,20}}(?:\.{_ATEXT}{{1,20}}){{1,2}})"

_BYTE = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_GROUP = "[0-9A-Fa-f]{1,4}"
_LAST32 = rf"(?:{_GROUP}:{_GROUP}|{_IPV4})"
_IPV6 = "|".join(  # RFC 3986, appendix A
    [
        rf"(?:{_GROUP}:){{6}}{_LAST32}",
        rf"::(?:{_GROUP}:){{5}}{_LAST32}",
        rf"(?:{_GROUP})?::(?:{_GROUP}:){{4}}{_LAST32}",
        rf"(?:(?:{_GROUP}:){{0,1}}{_GROUP})?::(?:{_GROUP}:){{3}}{_LAST32}",
        rf"(?:(?:{_GROUP}:){{0,2}}{_GROUP})?::(?:{_GROUP}:){{2}}{_LAST32}",
        rf"(?:(?:{_GROUP}:){{0,3}}{_GROUP})?::{_GROUP}:{_LAST32}",
        rf"(?:(?:{_GROUP}:){{0,4}}{_GROUP})?::{_LAST32}",
        rf"(?:(?:{_GROUP}:){{0,5}}{_GROUP})?::{_GROUP}",
        rf"(?:(?:{_GROUP}:){{0,6}}{_GROUP})?::",
    ]
)
_UUID = "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"

# RFC 3986, appendix A.
_PERCENT = "%[0-9A-Fa-f]{2}"
_UNRESERVED = r"A-Za-z0-9._~\-"
_SUB_DELIMS = "!$&'()*+,;="
_PCHAR = f"(?:[{_UNRESERVED}{_SUB_DELIMS}:@]|{_PERCENT})"
_SEGMENT_NO_COLON = f"(?:[{_UNRESERVED}{_SUB_DELIMS}@]|{_PERCENT})+"
_SEGMENTS = rf"(?:\/{_PCHAR}*)*"
_HOST = rf"(?:\[(?:{_IPV6})\]|(?:[{_UNRESERVED}{_SUB_DELIMS}]|{_PERCENT})*)"
_USER = f"(?:(?:[{_UNRESERVED}{_SUB_DELIMS}:]|{_PERCENT})*@)?"
_AUTHORITY = rf"\/\/{_USER}{_HOST}(?::\d{{0,5}})?{_SEGMENTS}"
_ABSOLUTE = rf"\/(?:{_PCHAR}+{_SEGMENTS})?"
_ROOTLESS = f"{_PCHAR}+{_SEGMENTS}"
_TAIL = rf"(?:\?(?:{_PCHAR}|[\/?])*)?(?:#(?:{_PCHAR}|[\/?])*)?"
_URI = rf"[A-Za-z][A-Za-z0-9+.\-]*:(?:{_AUTHORITY}|{_ABSOLUTE}|{_ROOTLESS})?{_TAIL}"
_RELATIVE = rf"(?:{_AUTHORITY}|{_ABSOLUTE}|{_SEGMENT_NO_COLON}{_SEGMENTS})?{_TAIL}"
_REFERENCE = f"{_URI}|{_RELATIVE}"

_POINTER = r"(?:\/(?:[^~\/]|~[01])*)*"
_RELATIVE_POINTER = rf"(?:0|[1-9]\d{{0,8}})(?:#|{_POINTER})"

# RFC 6570, without the operators that it reserves.
_VARCHAR = f"(?:[A-Za-z0-9_]|{_PERCENT})"
_VARIABLE = rf"{_VARCHAR}+(?:\.{_VARCHAR}+)*(?:\*|:[1-9]\d{{0,3}})?"
_EXPRESSION = rf"\{{[+#.\/;?&]?{_VARIABLE}(?:,{_VARIABLE})*\}}"
_URI_TEMPLATE = rf"(?:[!#$&()*+,\-.\/0-9:;=?@A-Z\[\]_a-z~]|{_PERCENT}|{_EXPRESSION})*"

_PATTERNS: Final[Mapping[str, str]] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": _DURATION,
    "email": f"{_LOCAL}@{_HOSTNAME}",
    "idn-email": f"{_LOCAL}@{_HOSTNAME}",
    "hostname": _HOSTNAME,
    "idn-hostname": _HOSTNAME,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uuid": _UUID,
    "uri": _URI,
    "iri": _URI,
    "uri-reference": _REFERENCE,
    "iri-reference": _REFERENCE,
    "uri-template": _URI_TEMPLATE,
    "json-pointer": _POINTER,
    "relative-json-pointer": _RELATIVE_POINTER,
}


def format_language(name: str) -> Regex | None:
    """Texts of the format; None if it is only an annotation here, being unknown or one of
    `UNENFORCEABLE`."""
    pattern = _PATTERNS.get(name)
    return None if pattern is None else _language(pattern)


@cache
def _language(pattern: str) -> Regex:
    return whole_language(pattern)
