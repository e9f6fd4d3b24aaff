"""A model's own chat template: messages to pieces of prompt text; knows no token ids.

Text of the messages never becomes a control token. It is disarmed before rendering with a
noncharacter that occurs in none of it; what still spells a control token afterwards was
written by the template. Then the noncharacter is taken out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..errors import InvalidRequest, ModelError
from ..programs.backend import RoleMarkers, TextPiece
from .chat_messages import Message, map_strings, plain_messages
from .controls import ControlTokens
from .role_markers import find_markers

_MARKS = [chr(code) for code in range(0xFDD1, 0xFDF0)]
_MAX_CACHED_ROLES = 1024
_MAX_CACHED_CHARS = 2048  # of the roles of one entry

# Templates build control tokens out of these names ("<|" + role + "|>"); any other role that
# could complete a control token is disarmed.
_KNOWN_ROLES = frozenset(
    ("system", "developer", "user", "assistant", "model", "tool", "function", "ipython")
)

# What evaluating a template on plain data can raise.
_TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class ChatTemplate:
    """A compiled template. Raises `ModelError` if it is no Jinja template.

    `special_tokens` are its variables such as `bos_token`; `now` is its clock.
    """

    def __init__(
        self,
        source: str,
        *,
        special_tokens: Mapping[str, str],
        controls: ControlTokens,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        if short := [text for text in controls.texts if len(text) == 1]:
            raise ModelError(f"chat template: control token {short[0]!r} is a single character")
        try:
            self._template = _environment(now).from_string(source)
        except jinja2.TemplateError as error:
            raise ModelError(f"the chat template is not valid: {error}") from error
        self._source = source
        self._special_tokens = dict(special_tokens)
        self._controls = controls
        self._cached_markers = lru_cache(maxsize=_MAX_CACHED_ROLES)(self._find_markers)

    def render(
        self, messages: Sequence[Mapping[str, object]], *, add_generation_prompt: bool = True
    ) -> list[TextPiece]:
        """The prompt of `messages`, with the template's own control tokens as such.

        Raises `InvalidRequest` for bad messages and with the words of a template that
        refuses them.
        """
        plain = plain_messages(messages)
        mark = self._free_mark(json.dumps(plain, ensure_ascii=False))
        try:
            disarmed = [self._disarm(message, mark) for message in plain]
        except RecursionError:
            raise InvalidRequest("the messages nest too deeply", param="messages") from None
        rendered = self._render_text(disarmed, add_generation_prompt)
        return [
            TextPiece(part.replace(mark, ""))
            if isinstance(part, str)
            else TextPiece(part.text, control=True)
            for part in self._controls.split(rendered)
        ]

    def role_markers(self, roles: Sequence[str]) -> RoleMarkers:
        """Markers of the last of `roles`; `InvalidRequest` if the template has none."""
        if not roles or not all(roles):
            raise InvalidRequest("role markers need non-empty roles", param="roles")
        is_long = len("\n".join(roles)) > _MAX_CACHED_CHARS  # callers choose them: bound the memory
        if is_long or "strftime_now" in self._source:  # the markers may contain today's date
            return self._find_markers(tuple(roles))
        return self._cached_markers(tuple(roles))

    def _find_markers(self, roles: tuple[str, ...]) -> RoleMarkers:
        mark = self._free_mark("".join(roles))
        markers = find_markers(self._render_text, [self._disarm_role(r, mark) for r in roles])
        return RoleMarkers(
            open=self._without_mark(markers.open, mark),
            close=self._without_mark(markers.close, mark),
        )

    def _without_mark(self, text: str, mark: str) -> str:
        """A marker's text with its roles as they are, if these spell no control token in it."""
        clean = text.replace(mark, "")
        if self._control_ids(clean) != self._control_ids(text):
            raise InvalidRequest("a role spells a control token", param="roles")
        return clean

    def _control_ids(self, text: str) -> list[int]:
        return [part.id for part in self._controls.split(text) if not isinstance(part, str)]

    def _render_text(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        try:
            return self._template.render(
                **self._special_tokens,
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
            )
        except _TEMPLATE_ERRORS as error:
            raise InvalidRequest(
                f"the chat template refuses the messages: {error}", param="messages"
            ) from error

    def _free_mark(self, texts: str) -> str:
        for mark in _MARKS:
            if mark not in texts and mark not in self._source:
                return mark
        raise InvalidRequest("the messages use all Unicode noncharacters", param="messages")

    def _disarm(self, message: Message, mark: str) -> Message:
        def value(text: str) -> str:
            return self._controls.disarm(text, mark)

        def key(text: str) -> str:
            return self._controls.break_up(text, mark)

        disarmed = {key(name): map_strings(item, value, key) for name, item in message.items()}
        disarmed["role"] = self._disarm_role(str(message["role"]), mark)
        return disarmed

    def _disarm_role(self, role: str, mark: str) -> str:
        return role if role in _KNOWN_ROLES else self._controls.disarm(role, mark)


class _GenerationTag(Extension):
    """`{% generation %}` marks what the model wrote, for training; here it writes its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    """What the transformers library gives its chat templates."""

    def strftime_now(pattern: str) -> str:
        return now().strftime(pattern)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    functions = cast("dict[str, Any]", environment.globals)
    functions["raise_exception"] = _raise_exception
    functions["strftime_now"] = strftime_now
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike Jinja's own filter, escapes nothing for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
