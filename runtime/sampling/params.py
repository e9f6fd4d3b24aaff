"""What a caller may ask of sampling, with its limits; never imports torch."""

from __future__ import annotations

import msgspec

from ..errors import InvalidRequest
from ..stop_patterns import MAX_PATTERNS, stop_patterns

MAX_STOPS = 32
MAX_STOP_BYTES = 1024
MAX_STOP_IDS = 1024
MAX_LOGIT_BIAS = 1024
MAX_CHOICES = 128


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the tokens of one request are chosen and when they end.

    Lengths are in tokens. `temperature=0` is greedy; `top_k=-1` keeps every token.
    `seed=None` draws a seed when the request is submitted; the same seed and prompt give
    the same tokens, whatever else runs. `stop_regex` are patterns that end the text where they
    match; see `stop_patterns`. `logit_bias` maps token ids to an addend. A
    constraint decides alone where its output may end: with one, `min_new_tokens` and
    `ignore_eos` have no say.
    """

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_regex: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    n: int = 1

    def validate(self, vocab_size: int) -> None:
        """Raise `InvalidRequest`, naming the field, unless every value is within its range.

        Stop token ids outside the vocabulary are allowed: they can never match.
        """
        for name, (low, high) in _INT_RANGES.items():
            check_int(name, getattr(self, name), low, high)
        for name, (low_f, high_f, open_low) in _FLOAT_RANGES.items():
            check_float(name, getattr(self, name), low_f, high_f, open_low)
        check_type("ignore_eos", self.ignore_eos, bool)
        if self.top_k == 0:
            raise InvalidRequest("top_k must be -1 (all) or at least 1, not 0", param="top_k")
        if self.min_new_tokens > self.max_new_tokens:
            raise InvalidRequest(
                f"min_new_tokens ({self.min_new_tokens}) is larger than max_new_tokens "
                f"({self.max_new_tokens})",
                param="min_new_tokens",
            )
        if self.seed is not None:
            check_int("seed", self.seed, -(2**63), 2**63 - 1)
        self._validate_stops()
        self._validate_bias(vocab_size)

    def _validate_stops(self) -> None:
        check_type("stop", self.stop, tuple)
        if len(self.stop) > MAX_STOPS:
            raise InvalidRequest(f"at most {MAX_STOPS} stop strings are allowed", param="stop")
        for text in self.stop:
            _check_stop(text)
        self._validate_stop_regex()
        check_type("stop_token_ids", self.stop_token_ids, tuple)
        if len(self.stop_token_ids) > MAX_STOP_IDS:
            raise InvalidRequest(
                f"at most {MAX_STOP_IDS} stop_token_ids are allowed", param="stop_token_ids"
            )
        for token_id in self.stop_token_ids:
            check_int("stop_token_ids", token_id, -(2**63), 2**63 - 1)

    def _validate_stop_regex(self) -> None:
        check_type("stop_regex", self.stop_regex, tuple)
        if len(self.stop_regex) > MAX_PATTERNS:
            message = f"at most {MAX_PATTERNS} patterns are allowed in stop_regex"
            raise InvalidRequest(message, param="stop_regex")
        for pattern in self.stop_regex:
            check_type("stop_regex", pattern, str)
        if self.stop_regex:
            stop_patterns(self.stop_regex)

    def _validate_bias(self, vocab_size: int) -> None:
        check_type("logit_bias", self.logit_bias, dict)
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise InvalidRequest(
                f"at most {MAX_LOGIT_BIAS} logit_bias entries are allowed", param="logit_bias"
            )
        for token_id, bias in self.logit_bias.items():
            check_int("logit_bias", token_id, 0, vocab_size - 1)
            check_float("logit_bias", bias, -100.0, 100.0)


_INT_RANGES: dict[str, tuple[int, int]] = {
    "max_new_tokens": (0, 2**31 - 1),
    "min_new_tokens": (0, 2**31 - 1),
    "top_k": (-1, 2**31 - 1),
    "n": (1, MAX_CHOICES),
}
_FLOAT_RANGES: dict[str, tuple[float, float, bool]] = {  # low, high, low itself excluded
    "temperature": (0.0, 100.0, False),
    "top_p": (0.0, 1.0, True),
    "min_p": (0.0, 1.0, False),
    "frequency_penalty": (-2.0, 2.0, False),
    "presence_penalty": (-2.0, 2.0, False),
    "repetition_penalty": (0.0, 2.0, True),
}


def check_type(name: str, value: object, kind: type) -> None:
    """Raise `InvalidRequest`, naming `name`, unless `value` is a `kind`."""
    if not isinstance(value, kind):
        raise InvalidRequest(f"{name} must be a {kind.__name__}, not {value!r}", param=name)


def _check_stop(text: object) -> None:
    if not isinstance(text, str) or not text:
        raise InvalidRequest("stop strings must be non-empty strings", param="stop")
    try:
        num_bytes = len(text.encode())
    except UnicodeEncodeError as error:
        message = f"a stop string has a lone surrogate: {error}"
        raise InvalidRequest(message, param="stop") from None
    if num_bytes > MAX_STOP_BYTES:
        raise InvalidRequest(f"a stop string may have at most {MAX_STOP_BYTES} bytes", param="stop")


def check_int(name: str, value: object, low: int, high: int) -> None:
    """Raise `InvalidRequest`, naming `name`, unless `value` is an int in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidRequest(
            f"{name} must be an integer from {low} to {high}, not {value!r}", param=name
        )


def check_float(name: str, value: object, low: float, high: float, open_low: bool = False) -> None:
    """Raise `InvalidRequest`, naming `name`, unless `value` is a number in [low, high].

    With `open_low`, `low` itself is refused. Comparisons alone decide: they are false for
    NaN, and exact for integers of any size.
    """
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not low <= value <= high
        or (open_low and value == low)
    ):
        above = "above" if open_low else "from"
        raise InvalidRequest(
            f"{name} must be a number {above} {low} to {high}, not {value!r}", param=name
        )
