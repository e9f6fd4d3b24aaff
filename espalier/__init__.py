"""Espalier: generation programs on a radix-cached runtime. The public names; nothing else.

Importing this imports neither torch nor an HTTP client: `Engine`, `Runtime` and
`RuntimeEndpoint` are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from espalier.frontend_lang import (
    BatchFailed,
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
    LaunchError,
    ModelError,
    PullError,
    RequestAborted,
    RequestFailed,
    Unavailable,
)
from espalier.runtime.messages import (
    Choice,
    Ebnf,
    JsonSchema,
    Lark,
    LogprobOptions,
    Regex,
    StructuralTag,
)
from espalier.runtime.sampling.params import SamplingParams

if TYPE_CHECKING:
    from espalier.frontend_lang.backends.endpoint import RuntimeEndpoint
    from espalier.frontend_lang.backends.managed import Runtime
    from espalier.runtime.engine import Engine

__version__ = "0.1.0"

__all__ = [
    "BatchFailed",
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
    "Lark",
    "LaunchError",
    "LogprobOptions",
    "ModelError",
    "ProgramRun",
    "ProgramState",
    "PullError",
    "Regex",
    "RequestAborted",
    "RequestFailed",
    "Runtime",
    "RuntimeEndpoint",
    "SamplingParams",
    "StructuralTag",
    "Unavailable",
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


_LAZY = {
    "Engine": "espalier.runtime.engine",
    "Runtime": "espalier.frontend_lang.backends.managed",
    "RuntimeEndpoint": "espalier.frontend_lang.backends.endpoint",
}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'espalier' has no attribute {name!r}")
