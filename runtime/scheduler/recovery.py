"""Taking back what a failed step or poisoned KV stood for, from everybody who relied on it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from espalier.radix.tree import Node

from .holdings import Holdings
from .request import Request

MAX_RETRIES = 1

Doomed = Callable[[Node], bool]


def is_unsettled(node: Node) -> bool:
    """The step that was to fill the node has not settled."""
    return node.step is not None


def roll_back(
    holdings: Holdings,
    running: Iterable[Request],
    last_step: int,
    doomed: Doomed,
    blamed: Collection[Request],
) -> list[Request]:
    """Put every running request back to what is sound, then withdraw the doomed nodes.

    Withdrawal is transitive: whoever matched a doomed node goes back to its deepest sound
    ancestor. `blamed` requests, and those that lose a part of their path, may compute it
    again `MAX_RETRIES` times; the returned ones have done so and are to be given up. The
    device must be drained; `last_step` is the newest step that was launched.
    """
    given_up: list[Request] = []
    for request in running:
        cut = holdings.roll_back(request, doomed)
        if cut or request in blamed:
            request.num_retries += 1
            if request.num_retries > MAX_RETRIES:
                given_up.append(request)
    holdings.fail(last_step, doomed)
    return given_up
