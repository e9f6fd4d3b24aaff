"""Taking back what a failed step or poisoned KV stood for, from everybody who relied on it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from espalier.radix.tree import Node

from .holdings import Holdings
from .request import Request
from .step import TableWrite

MAX_RETRIES = 1

Doomed = Callable[[Node], bool]


def is_unsettled(node: Node) -> bool:
    """The step that was to fill the node has not settled."""
    return node.step is not None


@dataclass(frozen=True, slots=True)
class RolledBack:
    """Who may not be tried again, and what the device must be told of all others."""

    given_up: list[Request]
    writes: list[TableWrite]


def roll_back(
    holdings: Holdings,
    running: Iterable[Request],
    last_step: int,
    doomed: Doomed,
    blamed: Collection[Request],
) -> RolledBack:
    """Put every running request back to what is sound, then withdraw the doomed nodes.

    Withdrawal is transitive: whoever matched a doomed node goes back to its deepest sound
    ancestor. The `blamed` ones, whose own step failed, may try again `MAX_RETRIES` times
    before they give a new token; the others were not at fault. The device must be drained,
    and may or may not have applied the writes of steps up to `last_step`, the newest launched.
    """
    given_up: list[Request] = []
    writes: list[TableWrite] = []
    for request in running:
        holdings.roll_back(request, doomed)
        if request in blamed:
            request.num_retries += 1
        if request.num_retries > MAX_RETRIES:
            given_up.append(request)
        else:
            writes.append(holdings.whole_row(request))
    holdings.fail(last_step, doomed)
    return RolledBack(given_up, writes)
