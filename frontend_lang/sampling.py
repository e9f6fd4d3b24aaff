"""Sampling arguments as programs give them: partly, over the defaults of a run.

What a `gen` leaves out comes from the arguments of `run`, and what that leaves out from
here: `max_tokens` 128 and `temperature` 0, so that programs give the same result each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, cast

from espalier.runtime.errors import InvalidRequest
from espalier.runtime.sampling.params import SamplingParams

_RUNTIME_NAMES = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens"}
_DEFAULTS = {"max_tokens": 128, "temperature": 0.0}
_MAX_TOKENS_LIMIT = 2**31 - 1
_ANY_VOCABULARY = 2**31  # the backend checks token ids against its own


@dataclass(frozen=True, kw_only=True)
class SamplingArgs:
    """None: not given. Collections are copied, so nobody's list is shared or changed."""

    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: str | Sequence[str] | None = None
    stop_regex: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None
    ignore_eos: bool | None = None

    def __post_init__(self) -> None:
        for name in ("stop", "stop_regex"):
            stops = getattr(self, name)
            stops = (stops,) if isinstance(stops, str) else stops
            object.__setattr__(self, name, _copied(name, stops))
        object.__setattr__(self, "stop_token_ids", _copied("stop_token_ids", self.stop_token_ids))
        if self.logit_bias is not None:
            if not isinstance(cast(object, self.logit_bias), Mapping):
                raise TypeError(f"logit_bias must be a mapping, not {self.logit_bias!r}")
            object.__setattr__(self, "logit_bias", dict(self.logit_bias))
        if self.ignore_eos is not None and not isinstance(cast(object, self.ignore_eos), bool):
            raise TypeError(f"ignore_eos must be a bool, not {self.ignore_eos!r}")
        # Whether min_tokens fits max_tokens is known when the defaults are.
        _checked_params({"max_tokens": _MAX_TOKENS_LIMIT, **self.given})

    @cached_property
    def given(self) -> dict[str, Any]:
        """The arguments that are given, by name."""
        return {
            name: value
            for name, value in vars(self).items()
            if value is not None and name in SAMPLING_NAMES
        }

    def over(self, defaults: SamplingArgs) -> SamplingArgs:
        """These arguments, and those of `defaults` where these are not given."""
        return replace(defaults, **self.given)

    def params(self, defaults: SamplingArgs, n: int) -> SamplingParams:
        """The runtime's parameters, checked; `InvalidRequest` names the argument at fault."""
        return _checked_params({**_DEFAULTS, **defaults.given, **self.given, "n": n})


SAMPLING_NAMES = frozenset(field.name for field in fields(SamplingArgs))


def _checked_params(arguments: dict[str, Any]) -> SamplingParams:
    params = SamplingParams(
        **{_RUNTIME_NAMES.get(name, name): value for name, value in arguments.items()}
    )
    try:
        params.validate(_ANY_VOCABULARY)
    except InvalidRequest as error:
        raise _in_our_names(error) from error
    return params


def _copied(name: str, values: Iterable[Any] | None) -> tuple[Any, ...] | None:
    if values is None:
        return None
    try:
        return tuple(values)
    except TypeError:
        raise TypeError(f"{name} must be a sequence, not {values!r}") from None


def _in_our_names(error: InvalidRequest) -> InvalidRequest:
    message, param = str(error), error.param
    for name, runtime_name in _RUNTIME_NAMES.items():
        message = message.replace(runtime_name, name)
        param = name if param == runtime_name else param
    return InvalidRequest(message, param=param)
