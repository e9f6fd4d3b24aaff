"""Prompts of OpenAI's requests to token ids; knows nothing of sampling or answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from ...client import RuntimeClient
from ...errors import InvalidRequest
from ...programs.backend import TextPiece
from ...scheduler.limits import RequestLimits
from .fields import ChatMessage
from .refusals import check_message_served

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


async def chat_prompt(client: RuntimeClient, messages: Sequence[ChatMessage]) -> list[int]:
    """Ids of what the model's own chat template makes of `messages`.

    Raises `InvalidRequest`, naming the message and its field, for what is no text message, and
    for more text than can fit, before the template sees it.
    """
    if not messages:
        raise InvalidRequest("messages is empty", param="messages")
    if len(messages) > client.limits.context_len:
        raise too_long("messages", f"{len(messages)} messages", client.limits)
    plain = [_plain_message(message, f"messages[{i}]") for i, message in enumerate(messages)]
    max_chars = client.limits.context_len * client.tokenizer.max_token_bytes
    num_chars = sum(len(text) for message in plain for text in message.values())
    if num_chars > max_chars:
        raise too_long("messages", f"{num_chars} characters", client.limits)
    return await client.run_in_worker(lambda: client.tokenizer.encode_chat(plain))


async def text_prompts(
    client: RuntimeClient, prompt: str | Sequence[str | int | Sequence[int]], max_prompts: int
) -> list[list[int]]:
    """Ids of each prompt; text is tokenised with its control tokens, behind the model's BOS.

    Raises `InvalidRequest` for a list whose items are not of one kind.
    """
    if isinstance(prompt, str):
        return [await _text_prompt(client, prompt)]
    if not prompt:
        raise InvalidRequest("prompt is an empty list", param="prompt")
    kinds = {type(item) for item in prompt}
    if len(kinds) > 1:
        raise InvalidRequest(
            "prompt must be a string, a list of strings, a flat list of integers, or a list of "
            "such lists, not a mixture",
            param="prompt",
        )
    if kinds == {int}:
        return [list(cast("Sequence[int]", prompt))]
    if len(prompt) > max_prompts:
        raise InvalidRequest(
            f"{len(prompt)} prompts are more than can be open at one time", param="prompt"
        )
    if kinds == {str}:
        return [await _text_prompt(client, text) for text in cast("Sequence[str]", prompt)]
    return [list(ids) for ids in cast("Sequence[Sequence[int]]", prompt)]


def check_prompt_len(prompt_len: int, limits: RequestLimits, param: str) -> None:
    """Raise `InvalidRequest` if a prompt can't be served whatever its output."""
    if prompt_len > min(limits.context_len, limits.pool_tokens):
        raise too_long(param, f"{prompt_len} tokens", limits)


def too_long(param: str, size: str, limits: RequestLimits) -> InvalidRequest:
    """The error for a prompt of `size`."""
    if limits.pool_tokens < limits.context_len:
        bound = f"the KV pool, which has {limits.pool_tokens} slots"
    else:
        bound = f"the model's context length of {limits.context_len} tokens"
    return InvalidRequest(f"the prompt of {size} is longer than {bound}", param=param)


async def _text_prompt(client: RuntimeClient, text: str) -> list[int]:
    ids = await client.encode([TextPiece(text, control=True)])
    bos_id = client.tokenizer.bos_id
    return ids if bos_id is None else [bos_id, *ids]


def _plain_message(message: ChatMessage, where: str) -> dict[str, str]:
    """What the template sees of `message`."""
    if message.role not in _ROLES:
        raise InvalidRequest(
            f"{where}.role is {message.role!r:.80}, not one of {', '.join(_ROLES)}",
            param=f"{where}.role",
        )
    check_message_served(message, where)
    plain = {"role": message.role, "content": _content(message.content, where + ".content")}
    for name in ("name", "tool_call_id", "reasoning_content"):
        value: str | None = getattr(message, name)
        if value is not None:
            plain[name] = value
    return plain


def _content(content: str | list[dict[str, object]] | None, where: str) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        raise InvalidRequest(f"{where} must be a string or a list of text parts", param=where)
    texts: list[str] = []
    for part in content:
        match part:
            case {"type": "text", "text": str(text), **rest} if not rest:
                texts.append(text)
            case _:
                raise InvalidRequest(
                    f"{where} has a part that is not text, which is not supported: {part!r:.80}",
                    param=where,
                )
    return "".join(texts)
