"""A caller's structural tag (xgrammar's format) made ready for xgrammar.

Tokens are named by id, JSON schemas and patterns become grammars of ours, so that they say what
they say anywhere else. What xgrammar would pass over in silence is refused.

    {"type": "structural_tag", "format": <node>}       a node has "type", and nodes inside
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ..errors import InvalidRequest
from ..messages import JsonSchema, Regex
from .derive import derived
from .ebnf import ebnf_of
from .regular import NotPrintable, TooLarge
from .schema.document import is_list, is_object
from .schema.trouble import ROOT, Malformed, Pointer
from .schema.values import read_json, spelled

_FIELDS: Final[Mapping[str, frozenset[str]]] = {
    kind: frozenset(fields.split())
    for kind, fields in {
        "const_string": "value",
        "json_schema": "json_schema style",
        "regex": "pattern",
        "grammar": "grammar syntax",
        "any_text": "excludes max_tokens max_chars",
        "token": "token",
        "exclude_token": "exclude_tokens",
        "any_tokens": "exclude_tokens max_tokens",
        "sequence": "elements",
        "or": "elements",
        "optional": "content",
        "plus": "content",
        "star": "content",
        "repeat": "content min max",
        "tag": "begin content end",
        "triggered_tags": "triggers tags at_least_one stop_after_first excludes",
        "token_triggered_tags": (
            "trigger_tokens tags exclude_tokens at_least_one stop_after_first"
        ),
        "tags_with_separator": "tags separator at_least_one stop_after_first",
        "dispatch": "rules loop excludes",
        "token_dispatch": "rules loop exclude_tokens",
    }.items()
}


@dataclass(frozen=True, slots=True)
class StructuralTagText:
    """text: for xgrammar. token_ids: the tokens that may come because the tag names them.
    notes: what its schemas narrow."""

    text: str
    token_ids: tuple[int, ...]
    notes: tuple[str, ...]


def prepared_tag(
    text: str, token_bytes: Sequence[bytes], stop_ids: Collection[int]
) -> StructuralTagText:
    """Raises `InvalidRequest` with the path of what is wrong or not supported."""
    try:
        tag = read_json(text)
    except Malformed as trouble:
        raise _refusal(ROOT, str(trouble)) from None
    if not is_object(tag) or tag.get("type") != "structural_tag" or tag.keys() - {"type", "format"}:
        raise _refusal(ROOT, 'it must be {"type": "structural_tag", "format": ...}')
    reader = _Reader(token_bytes, stop_ids)
    ready = {"type": "structural_tag", "format": reader.node(tag.get("format"), ROOT / "format")}
    return StructuralTagText(spelled(ready), tuple(sorted(reader.named)), tuple(reader.notes))


class _Reader:
    def __init__(self, token_bytes: Sequence[bytes], stop_ids: Collection[int]) -> None:
        self.named: set[int] = set()
        self.notes: dict[str, None] = {}
        self._token_bytes = token_bytes
        self._stop_ids = stop_ids

    def node(self, node: object, place: Pointer, default: str | None = None) -> object:
        """The node for xgrammar. default: its type where it does not say."""
        if not is_object(node):
            raise _refusal(place, "it must be an object with a type")
        kind = node.get("type", default)
        if not isinstance(kind, str) or kind not in _FIELDS:
            raise _refusal(place, f"type {kind!r:.80} is not supported: it is {', '.join(_FIELDS)}")
        unknown = sorted(node.keys() - _FIELDS[kind] - {"type"})
        if unknown:
            raise _refusal(place, f"{unknown[0]!r:.80} is not supported in a {kind}")
        match kind:
            case "json_schema":
                return self._schema(node, place)
            case "regex":
                return self._pattern(node, place)
            case _:
                fields = {"type": kind, **node}
                return {name: self._field(kind, name, fields[name], place) for name in fields}

    def _field(self, kind: str, name: str, value: object, place: Pointer) -> object:
        match kind, name:
            case "token", "token":
                return self._token(value, place / name, is_named=True)
            case _, "trigger_tokens":
                return _each(value, place / name, lambda v, p: self._token(v, p, is_named=True))
            case _, "exclude_tokens":
                return _each(value, place / name, lambda v, p: self._token(v, p, is_named=False))
            case _, "content":
                return self.node(value, place / name)
            case _, "elements":
                return _each(value, place / name, self.node)
            case _, "tags":
                return _each(value, place / name, lambda v, p: self.node(v, p, default="tag"))
            case "dispatch" | "token_dispatch", "rules":
                return _each(value, place / name, lambda v, p: self._rule(kind, v, p))
            case "tag", "begin" | "end" if is_object(value):
                return self.node(value, place / name, default="token")
            case _:
                return value

    def _rule(self, kind: str, rule: object, place: Pointer) -> object:
        if not is_list(rule) or len(rule) != 2:
            raise _refusal(place, "it must be a list of a pattern and a format")
        pattern, format_ = rule
        if kind == "token_dispatch":
            pattern = self._token(pattern, place / "0", is_named=True)
        return [pattern, self.node(format_, place / "1")]

    def _token(self, value: object, place: Pointer, *, is_named: bool) -> int:
        if isinstance(value, str):
            try:
                token_id = self._token_bytes.index(value.encode())
            except ValueError:
                raise _refusal(place, f"no token is {value!r:.80}") from None
        elif isinstance(value, int) and not isinstance(value, bool):
            token_id = value
        else:
            raise _refusal(place, "it must be a token id, or a token's text")
        if not 0 <= token_id < len(self._token_bytes):
            raise _refusal(place, f"{token_id} is no token id")
        if is_named:
            if token_id in self._stop_ids:
                raise _refusal(place, f"token {value!r:.80} ends the output: a tag can't name it")
            self.named.add(token_id)
        return token_id

    def _schema(self, node: Mapping[str, object], place: Pointer) -> object:
        if node.get("style", "json") != "json":
            raise _refusal(place / "style", "only 'json' is supported")
        schema = node.get("json_schema")
        if not is_object(schema) and not isinstance(schema, bool):
            raise _refusal(place / "json_schema", "it must be an object or a boolean")
        return self._grammar(JsonSchema(spelled(schema)), place / "json_schema")

    def _pattern(self, node: Mapping[str, object], place: Pointer) -> object:
        pattern = node.get("pattern")
        if not isinstance(pattern, str):
            raise _refusal(place / "pattern", "it must be a string")
        return self._grammar(Regex(pattern), place / "pattern")

    def _grammar(self, constraint: JsonSchema | Regex, place: Pointer) -> object:
        try:
            found = derived(constraint)
            text = ebnf_of(found.grammar)
        except InvalidRequest as error:
            raise _refusal(place, str(error)) from None
        except (NotPrintable, TooLarge) as error:
            raise _refusal(place, f"it is too large for a tag: {error}") from None
        self.notes.update(dict.fromkeys(found.notes))
        return {"type": "grammar", "grammar": text}


def _each(value: object, place: Pointer, read: Callable[[object, Pointer], object]) -> list[object]:
    if not is_list(value):
        raise _refusal(place, "it must be a list")
    return [read(item, place / str(index)) for index, item in enumerate(value)]


def _refusal(place: Pointer, trouble: str) -> InvalidRequest:
    return InvalidRequest(f"structural_tag: at {place!s:.200}: {trouble}", param="structural_tag")
