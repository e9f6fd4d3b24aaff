"""The nodes of a generation program, as data with a JSON form; knows nothing of running them.

One list of nodes is one stream: the nodes happen in order. A `Fork` opens streams of its
own, which a later `Join` of the parent brings back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from ..errors import InvalidRequest
from ..messages import Constraint, LogprobOptions
from ..sampling.params import SamplingParams

ChoicesMethod = Literal[
    "token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized"
]
JoinMode = Literal["gather_variable", "concate_and_append"]


class Append(msgspec.Struct, frozen=True, tag="append"):
    """Constant text; control tokens are recognised in it only if `control`."""

    text: str
    control: bool = False


class RoleBegin(msgspec.Struct, frozen=True, tag="role_begin"):
    """A message begins: the template's opening marker."""

    role: str


class RoleEnd(msgspec.Struct, frozen=True, tag="role_end"):
    """The open message ends: the template's closing marker."""


class Gen(msgspec.Struct, frozen=True, tag="gen", kw_only=True):
    """Continue the stream. With `sampling.n` > 1 the variable is a list of texts and the
    stream is not extended."""

    name: str | None = None
    sampling: SamplingParams
    constraint: Constraint | None = None
    logprobs: LogprobOptions | None = None


class Select(msgspec.Struct, frozen=True, tag="select", kw_only=True):
    """Append the most likely of `choices`, none of which is empty."""

    name: str | None = None
    choices: Annotated[
        tuple[Annotated[str, msgspec.Meta(min_length=1)], ...], msgspec.Meta(min_length=1)
    ]
    method: ChoicesMethod = "token_length_normalized"


class Fork(msgspec.Struct, frozen=True, tag="fork"):
    """Open `size` streams that begin as copies of this one."""

    size: Annotated[int, msgspec.Meta(ge=1)]


class Join(msgspec.Struct, frozen=True, tag="join"):
    """Wait for the streams of a fork.

    "gather_variable": each variable that some branch set becomes the list of the branches'
    values, None where a branch has none. "concate_and_append": what each branch appended
    is appended here, in the order of the branches.
    """

    mode: JoinMode = "gather_variable"


Node = Append | RoleBegin | RoleEnd | Gen | Select | Fork | Join

_DECODER = msgspec.json.Decoder(tuple[Node, ...])


def encode_nodes(nodes: Sequence[Node]) -> bytes:
    """The JSON form of one stream's nodes."""
    return msgspec.json.encode(nodes)


def decode_nodes(data: bytes | str) -> tuple[Node, ...]:
    """The nodes of a JSON form; `InvalidRequest` names the path of what is wrong."""
    try:
        return _DECODER.decode(data)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"not a program: {error}") from error
