"""The DSL: functions, states and expressions that become program nodes."""

from __future__ import annotations

from .batch import BatchFailed
from .branches import Branches
from .defaults import set_default_backend
from .expressions import (
    Expr,
    assistant,
    assistant_begin,
    assistant_end,
    control,
    system,
    system_begin,
    system_end,
    user,
    user_begin,
    user_end,
)
from .primitives import (
    gen,
    gen_int,
    gen_string,
    greedy_token_selection,
    select,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from .program import Function, function
from .run import ProgramRun
from .state import ProgramState

__all__ = [
    "BatchFailed",
    "Branches",
    "Expr",
    "Function",
    "ProgramRun",
    "ProgramState",
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
