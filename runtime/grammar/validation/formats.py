"""String formats as their RFCs define them: those that a schema's `format` asserts here.

Others are annotations. Patterns are in RE2's syntax and are for the whole string.
"""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Callable, Mapping
from functools import partial
from ipaddress import AddressValueError, IPv6Address

from .outcome import Uncheckable
from .patterns import matches

_DATE = r"\d{4}-\d\d-\d\d"
_TIME = r"\d\d:[0-5]\d:(?:[0-5]\d|60)(?:\.\d+)?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)"

# RFC 3339, appendix A: units follow one another without a gap.
_DURATION_TIME = r"T(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S)"
_DURATION_DATE = r"(?:\d+Y(?:\d+M(?:\d+D)?)?|\d+M(?:\d+D)?|\d+D)"
_DURATION = rf"P(?:{_DURATION_DATE}(?:{_DURATION_TIME})?|{_DURATION_TIME}|\d+W)"

_UUID = r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
_JSON_POINTER = r"(?:/(?:[^/~]|~[01])*)*"
_RELATIVE_JSON_POINTER = rf"(?:0|[1-9]\d*)(?:#|{_JSON_POINTER})"

_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"

_LABEL = r"[0-9A-Za-z](?:[0-9A-Za-z-]{0,61}[0-9A-Za-z])?"
_HOSTNAME = rf"{_LABEL}(?:\.{_LABEL})*"

# RFC 5321, section 4.1.2.
_ATOM = r"[0-9A-Za-z!#$%&'*+/=?^_`{|}~-]+"
_QUOTED = r'"(?:[ !#-\[\]-~]|\\[ -~])*"'
_LOCAL_PART = rf"(?:{_ATOM}(?:\.{_ATOM})*|{_QUOTED})"

# RFC 3986, appendix A.
_PCHAR = r"(?:[0-9A-Za-z._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
_USER_INFO = r"(?:[0-9A-Za-z._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*"
_REG_NAME = r"(?:[0-9A-Za-z._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*"
_IP_FUTURE = r"\[[Vv][0-9A-Fa-f]+\.[0-9A-Za-z._~!$&'()*+,;=:-]+\]"
_FIRST_WITHOUT_COLON = r"(?:[0-9A-Za-z._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2})+"
_AUTHORITY = rf"(?:{_USER_INFO}@)?(?:{_IP_FUTURE}|{_REG_NAME})(?::\d*)?"
_SLASHED = rf"(?://{_AUTHORITY}(?:/{_PCHAR}*)*|/(?:{_PCHAR}+(?:/{_PCHAR}*)*)?)"
_TAIL = rf"(?:\?(?:{_PCHAR}|[/?])*)?(?:#(?:{_PCHAR}|[/?])*)?"
_SCHEME = r"[A-Za-z][0-9A-Za-z+.-]*:"
_URI = rf"{_SCHEME}(?:{_SLASHED}|{_PCHAR}+(?:/{_PCHAR}*)*)?{_TAIL}"
_RELATIVE = rf"(?:{_SLASHED}|{_FIRST_WITHOUT_COLON}(?:/{_PCHAR}*)*)?{_TAIL}"


def _is_date(text: str) -> bool:
    if not matches(_DATE, text):
        return False
    year, month, day = int(text[:4]), int(text[5:7]), int(text[8:])
    return 1 <= month <= 12 and 1 <= day <= monthrange(year, month)[1]


def _is_time(text: str) -> bool:
    if not matches(_TIME, text) or int(text[:2]) > 23:
        return False
    if text[6:8] != "60":
        return True
    # A leap second ends a day in UTC.
    minutes = 60 * int(text[:2]) + int(text[3:5])
    if text[-1] not in "Zz":
        offset = 60 * int(text[-5:-3]) + int(text[-2:])
        minutes -= offset if text[-6] == "+" else -offset
    return minutes % (24 * 60) == 24 * 60 - 1


def _is_date_time(text: str) -> bool:
    return _is_date(text[:10]) and text[10:11] in ("T", "t") and _is_time(text[11:])


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except AddressValueError:
        return False
    return "%" not in text  # a zone is no part of the address


def _is_hostname(text: str) -> bool:
    if len(text) > 253 or not matches(_HOSTNAME, text):
        return False
    if any(label[:4].lower() == "xn--" for label in text.split(".")):
        raise Uncheckable(f"whether {text!r:.80} is a host name depends on tables of Unicode")
    return True


def _is_email(text: str) -> bool:
    local, at, domain = text.rpartition("@")
    if not at or not matches(_LOCAL_PART, local):
        return False
    if domain.startswith("[") and domain.endswith("]"):
        address = domain[1:-1]
        if address[:5].lower() == "ipv6:":
            return _is_ipv6(address[5:])
        return matches(_IPV4, address)
    return matches(_HOSTNAME, domain)


def _is_uri(text: str) -> bool:
    return matches(_URI, _without_ipv6(text))


def _is_uri_reference(text: str) -> bool:
    return _is_uri(text) or matches(_RELATIVE, _without_ipv6(text))


def _without_ipv6(text: str) -> str:
    """With a host of the same kind in place of an IPv6 address in brackets."""
    before, bracket, rest = text.partition("[")
    address, closing, after = rest.partition("]")
    if bracket and closing and _is_ipv6(address):
        return f"{before}[v1.x]{after}"
    return text


FORMATS: Mapping[str, Callable[[str], bool]] = {
    "date": _is_date,
    "time": _is_time,
    "date-time": _is_date_time,
    "duration": partial(matches, _DURATION),
    "email": _is_email,
    "hostname": _is_hostname,
    "ipv4": partial(matches, _IPV4),
    "ipv6": _is_ipv6,
    "json-pointer": partial(matches, _JSON_POINTER),
    "relative-json-pointer": partial(matches, _RELATIVE_JSON_POINTER),
    "uri": _is_uri,
    "uri-reference": _is_uri_reference,
    "uuid": partial(matches, _UUID),
}
