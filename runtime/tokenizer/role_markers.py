"""The text a chat template puts around one message; found by rendering, knows no Jinja.

The contents are replaced by sentinels. For the roles system, user:

    render([system])        <s>system ⟨0⟩</s>
    render([system, user])  <s>system ⟨0⟩</s><s>user ⟨1⟩</s>
                            └──── before ───┘└ open ┘   └ close
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..errors import InvalidRequest
from ..programs.backend import RoleMarkers
from .chat_messages import Message

Render = Callable[[Sequence[Message], bool], str]
"""Messages and whether to add the generation prompt, to text."""

_SENTINEL = "\ufdd0"  # a noncharacter: no template writes it
_GENERATES = "assistant"


def find_markers(render: Render, roles: Sequence[str]) -> RoleMarkers:
    """Markers of the last of `roles`.

    Raises `InvalidRequest` if the template refuses the roles, changes what it wrote before
    when a message is added, or does not write each content once.
    """
    last = len(roles) - 1
    messages: list[Message] = [
        {"role": role, "content": _sentinel(i)} for i, role in enumerate(roles)
    ]
    before = render(messages[:-1], False) if last else ""
    added = _added(before, render(messages, False), last)
    opening, found, closing = added.partition(_sentinel(last))
    if not found or _SENTINEL in opening + closing:
        raise InvalidRequest(
            f"the chat template drops, changes or repeats the content of message {last}, "
            "so it has no text before and after it"
        )
    if last and roles[last] == _GENERATES:
        opening = _added(before, render(messages[:-1], True), last)
    return RoleMarkers(open=opening, close=closing)


def _sentinel(index: int) -> str:
    return f"{_SENTINEL}{index}{_SENTINEL}"


def _added(before: str, whole: str, last: int) -> str:
    if not whole.startswith(before):
        raise InvalidRequest(
            f"the chat template is not incremental: message {last} changes how the messages "
            "before it are written"
        )
    return whole[len(before) :]
