"""Espalier: generation programs on a radix-cached runtime. The public names; nothing else.

Importing this does not import torch: `Engine` is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from espalier.frontend_lang import (
    Branches,
    Expr,
    Function,
    ProgramRun,
    ProgramState,
    assistant,
    assistant_begin,
    assistant_end,
    control,
    function,
    gen,
    gen_int,
    gen_string,
    greedy_token_selection,
    select,
    set_default_backend,
    system,
    system_begin,
    system_end,
    token_length_normalized,
    unconditional_likelihood_normalized,
    user,
    user_begin,
    user_end,
)
from espalier.runtime.errors import (
    EngineClosed,
    EspalierError,
    InvalidRequest,
    ModelError,
    PullError,
    RequestAborted,
    RequestFailed,
)
from espalier.runtime.messages import Choice, Ebnf, JsonSchema, LogprobOptions, Regex
from espalier.runtime.sampling.params import SamplingParams

if TYPE_CHECKING:
    from espalier.runtime.engine import Engine

__version__ = "0.1.0"

__all__ = [
    "Branches",
    "Choice",
    "Ebnf",
    "Engine",
    "EngineClosed",
    "EspalierError",
    "Expr",
    "Function",
    "InvalidRequest",
    "JsonSchema",
    "LogprobOptions",
    "ModelError",
    "ProgramRun",
    "ProgramState",
    "PullError",
    "Regex",
    "RequestAborted",
    "RequestFailed",
    "SamplingParams",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "control",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "greedy_token_selection",
    "select",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
    "user",
    "user_begin",
    "user_end",
]


def __getattr__(name: str) -> object:
    if name == "Engine":
        from espalier.runtime.engine import Engine

        return Engine
    raise AttributeError(f"module 'espalier' has no attribute {name!r}")
