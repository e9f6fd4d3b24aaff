"""Checks chat messages and makes plain data of them; knows no template."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import cast

from ..errors import InvalidRequest

Message = dict[str, object]


def plain_messages(messages: object) -> list[Message]:
    """Copies of the messages, of JSON types only, each with strings `role` and `content`.

    Content in parts `{"type": "text", "text": ...}` is joined; keys whose value is None are
    left out. Raises `InvalidRequest`, naming the index, for anything else.
    """
    if not isinstance(messages, list | tuple):
        raise InvalidRequest("messages must be a list", param="messages")
    return [_plain_message(i, m) for i, m in enumerate(cast("list[object]", messages))]


Change = Callable[[str], str]


def map_strings(data: object, value: Change, key: Change) -> object:
    """A copy of JSON data with every string changed by `value`, every key by `key`."""
    if isinstance(data, str):
        return value(data)
    if isinstance(data, list):
        return [map_strings(item, value, key) for item in cast("list[object]", data)]
    if isinstance(data, dict):
        items = cast("dict[str, object]", data).items()
        return {key(name): map_strings(item, value, key) for name, item in items}
    return data


def _plain_message(index: int, message: object) -> Message:
    if not isinstance(message, dict):
        raise _invalid(index, f"must be an object, not {type(message).__name__}")
    try:
        text = json.dumps(message, ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError:
        raise _invalid(index, "has a lone surrogate in its text") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise _invalid(index, f"is not JSON data: {error}") from None
    loaded = cast(Message, json.loads(text))
    plain = {key: value for key, value in loaded.items() if value is not None}
    if not isinstance(plain.get("role"), str) or not plain["role"]:
        raise _invalid(index, "needs a role, a non-empty string")
    plain["content"] = _joined_content(index, plain.get("content"))
    return plain


def _joined_content(index: int, content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _invalid(index, "needs a content: a string or a list of text parts")
    texts: list[str] = []
    for part in cast("list[object]", content):
        match part:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case _:
                raise _invalid(index, f"has a content part that is not text: {part!r:.80}")
    return "".join(texts)


def _invalid(index: int, what: str) -> InvalidRequest:
    return InvalidRequest(f"message {index} {what}", param="messages")
