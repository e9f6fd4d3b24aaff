"""Taking back what a failed step or poisoned KV stood for, from everybody who relied on it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from espalier.radix.tree import Node

from ..messages import FinishReason
from .flight import Flight
from .holdings import Holdings
from .planner import Planner
from .request import Request
from .roster import Roster
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


class Recovery:
    """What becomes of the requests when a step fails, or gives NaN for some of them."""

    def __init__(self, roster: Roster, holdings: Holdings, planner: Planner) -> None:
        self._roster = roster
        self._holdings = holdings
        self._planner = planner

    def retry(self, flight: Flight, successor: Flight | None, error: Exception) -> None:
        """Withdraw what the failed step and its successor promised; retry their requests."""
        self._roster.totals.failed_steps += 1
        for request in self._roll_back(flight, successor, is_unsettled, flight.requests):
            reason = FinishReason(kind="error", message=f"its step failed: {error}")
            self._roster.end_early(request, reason)

    def withdraw_poisoned(
        self, poisoned: list[Request], flight: Flight, successor: Flight | None
    ) -> None:
        """NaN logits: trust none of the KV that these requests were computed from.

        Each tries once more, all by itself: if the NaN was somebody else's it is gone then,
        and if it is the request's own nobody shares it.
        """
        nodes = {node for request in poisoned for node in self._holdings.path(request)}
        for request in poisoned:
            request.settled_len = request.tree_len  # its private KV is no better
            if request.quarantined:
                message = "the model gave NaN logits for this request"
                self._roster.end_early(request, FinishReason(kind="error", message=message))
            request.quarantined = True
        self._roll_back(flight, successor, lambda n: is_unsettled(n) or n in nodes, ())

    def _roll_back(
        self, flight: Flight, successor: Flight | None, doomed: Doomed, blamed: Sequence[Request]
    ) -> list[Request]:
        """Drain the device, then take everything back that the doomed nodes stood for.

        Returns the blamed requests that have had their retry.
        """
        last = flight
        if successor is not None:
            successor.launched.discard()
            last = successor
        outcome = roll_back(self._holdings, self._roster.running, last.number, doomed, blamed)
        self._planner.write_again(outcome.writes)
        self._roster.requeue_retracted()
        return outcome.given_up
