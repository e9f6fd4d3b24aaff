"""What is known of OpenAI's API, is not served here, and would change the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...errors import InvalidRequest
from ..unserved import refuse_unserved
from .fields import ChatBody, ChatMessage, CommonBody, CompletionBody

# Field: values, besides null, that ask for nothing else than what is served.
_COMMON: Mapping[str, Sequence[object]] = {
    "skip_special_tokens": (True,),
    "lora_path": (),
    "custom_logit_processor": (),
    "session_params": (),
}
_COMPLETION: Mapping[str, Sequence[object]] = {"echo": (False,), "suffix": ("",)}
_CHAT: Mapping[str, Sequence[object]] = {
    "tools": (),
    "tool_choice": ("none", "auto"),
    "functions": (),
    "function_call": ("none", "auto"),
    "audio": (),
    "modalities": (["text"],),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
    "chat_template_kwargs": ({},),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
}
_MESSAGE: Mapping[str, Sequence[object]] = {
    "tool_calls": (),
    "function_call": (),
    "audio": (),
    "refusal": (),
}


def check_served(body: CompletionBody | ChatBody) -> None:
    """Raise `InvalidRequest` naming the first field that asks for what is not served."""
    refuse_unserved(body, _COMMON)
    _check_best_of(body)
    refuse_unserved(body, _COMPLETION if isinstance(body, CompletionBody) else _CHAT)
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options needs stream to be true", param="stream_options")


def check_message_served(message: ChatMessage, where: str) -> None:
    """The same for one message; `where` is its path in the body."""
    refuse_unserved(message, _MESSAGE, f"{where}.")


def _check_best_of(body: CommonBody) -> None:
    n = 1 if body.n is None else body.n
    if body.best_of is not None and body.best_of != n:
        raise InvalidRequest(
            f"best_of={body.best_of} with n={n} is not supported: all choices are returned",
            param="best_of",
        )
