"""What crosses between the runtime's parts: plain frozen structs, token ids, no torch.

A client sends `SubmitRequests` and `AbortRequest`; the scheduler answers with
`TokenOutput`, one for each step in which the request got tokens, the last one with
`finish` set. Every accepted request gets exactly one output with `finish` set.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from .sampling.params import SamplingParams

TokenIds = npt.NDArray[np.int32]


Unenforced = Literal["refuse", "validate"]


class JsonSchema(msgspec.Struct, frozen=True, tag="json_schema"):
    """Output is a JSON document, in compact layout, of this schema (JSON text).

    open_objects: keys that the schema does not name may stand where it does not forbid them.
    unenforced: where the grammar can't say all that the schema says, the request is refused,
    or what can't be said is left out, and the finished text validated.
    """

    schema: str
    open_objects: bool = False
    unenforced: Unenforced = "refuse"


class Regex(msgspec.Struct, frozen=True, tag="regex"):
    """The whole output matches this regular expression."""

    pattern: str


class Ebnf(msgspec.Struct, frozen=True, tag="ebnf"):
    """Output is derived from rule `root` of this grammar (xgrammar's EBNF)."""

    grammar: str


class Lark(msgspec.Struct, frozen=True, tag="lark"):
    """Output is derived from rule `start` of this grammar (llguidance's Lark)."""

    grammar: str


class StructuralTag(msgspec.Struct, frozen=True, tag="structural_tag"):
    """Output has the structure of this structural tag (JSON text of xgrammar's format)."""

    structure: str


class Choice(msgspec.Struct, frozen=True, tag="choice"):
    """Output is one of these strings."""

    choices: tuple[str, ...]


Constraint = JsonSchema | Regex | Ebnf | Lark | StructuralTag | Choice


class LogprobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which log-probabilities to report: log-softmax of the raw logits.

    "Raw" is before temperature, penalties, bias and masks. `prompt_start` is the first
    prompt position reported (None: none); position 0 has no log-probability. `top` is the
    number of most likely alternatives reported at each position.
    """

    output: bool = True
    prompt_start: int | None = None
    top: int = 0


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """One position: its token, that token's log-probability (None at position 0), the top."""

    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()


FinishKind = Literal["stop", "length", "abort", "error"]


class FinishReason(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request ended; `matched` is the stop token's id or the text that a stop matched,
    `message` the error.

    `bad_request` tells an error that the request itself caused (its grammar does not
    compile) from one of the runtime; `lost` one whose process died, or lost its KV: it may
    be sent again; `retry_after_s` one that was refused: it may be sent again after so long.
    `shutdown` tells an abort that nobody asked for but who ended the runtime. `incomplete`:
    the length cut the text off before the grammar that the caller wrote allowed an end.
    """

    kind: FinishKind
    matched: str | int | None = None
    message: str = ""
    bad_request: bool = False
    lost: bool = False
    retry_after_s: float | None = None
    shutdown: bool = False
    incomplete: bool = False


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What one request cost, in tokens; `cached_tokens` came from the radix cache, and
    `forced_tokens` of the completion's from its constraint: no step has sampled them."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    forced_tokens: int = 0
    num_retractions: int = 0


EngineName = Literal["xgrammar", "llguidance"]


class GrammarReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a constraint was enforced, and whether what came out is what the schema asks for.

    notes: in what the grammar is narrower than the constraint, and what of it is not enforced.
    valid: None where that was not checked: there is no schema, or the text was cut off; or where
    it can't be decided. trouble: why it is not True, if it could have been.
    """

    engine: EngineName
    notes: tuple[str, ...] = ()
    valid: bool | None = None
    trouble: str = ""


class RequestTimes(msgspec.Struct, kw_only=True, array_like=True):
    """When things happened to a request in its scheduler; 0.0: not yet, or never.

    Seconds of the machine's monotonic clock, which all processes share (Linux). It was
    accepted, its grammar was compiled, its first step was launched, its tokens were settled.
    """

    accepted_s: float = 0.0
    grammar_s: float = 0.0
    scheduled_s: float = 0.0
    first_token_s: float = 0.0
    last_token_s: float = 0.0
    ended_s: float = 0.0


MAX_LEASE_S = 86_400.0


class SchedulingHints(msgspec.Struct, frozen=True, kw_only=True):
    """What scheduling policies go by; changes when a request is computed, never its output.

    The higher `priority` goes first. `stages_left`: calls that the program still has to make
    one after another, this one included. `tenant`: who is charged, if shares are fair.
    `lease_s`: how long after a good end what is computed stays cached, in [0, MAX_LEASE_S].
    """

    priority: int = 0
    stages_left: int = 1
    tenant: str = ""
    lease_s: float = 0.0


class TokenizedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence to continue. `choice` tells the samples of one request with n > 1 apart.

    `sampling.seed` is set and `sampling.n` is not read: the client side has expanded it.
    Requests share cached tokens only within one `namespace`. `timed`: its times are wanted,
    with the last output.
    """

    rid: str
    input_ids: TokenIds
    sampling: SamplingParams
    choice: int = 0
    constraint: Constraint | None = None
    logprobs: LogprobOptions | None = None
    namespace: tuple[str, ...] = ()
    hints: SchedulingHints = SchedulingHints()
    timed: bool = False


class SubmitRequests(msgspec.Struct, frozen=True):
    """Requests that arrive together, so that one step can plan them together."""

    requests: tuple[TokenizedRequest, ...]


class AbortRequest(msgspec.Struct, frozen=True):
    """End the request with exactly this id, in whatever state it is; unknown ids are fine."""

    rid: str


class TokenOutput(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """New tokens of one request.

    With `finish` set this is the request's last message: `usage` is set;
    `num_text_bytes` is the length of the output text in bytes after a stop string was cut
    off, `num_kept_tokens` the number of output tokens that lie wholly before that cut.
    `prompt_logprobs` comes whole with the first output after the prompt is computed. `forced` are
    the places in `ids` of tokens that no step has sampled: the constraint left no choice.
    `times` are there if the request is `timed`, `grammar` if it was generated under one.
    """

    rid: str
    choice: int = 0
    ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    finish: FinishReason | None = None
    usage: Usage | None = None
    num_text_bytes: int = 0
    num_kept_tokens: int = 0
    times: RequestTimes | None = None
    grammar: GrammarReport | None = None
    forced: tuple[int, ...] = ()
