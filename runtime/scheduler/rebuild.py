"""What to do when the scheduler's books are wrong: who ends, and what the log is told of it.

Nobody can tell then which slot is whose. So all that is held is taken back at once, those who
held it end with an error, and those who wait go on: they hold nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from espalier.radix.cache import RadixCache
from espalier.radix.picture import picture

from ..messages import FinishReason
from .request import Request

MAX_REBUILDS = 2  # without a step that settles between them
_MAX_LINES = 200
_MAX_REQUESTS = 64
_MAX_WORDS = 300


class Patience:
    """How often in a row the books were found wrong, and what that says."""

    def __init__(self) -> None:
        self._num_rebuilds = 0

    def restore(self) -> None:
        """A step has settled."""
        self._num_rebuilds = 0

    def lose(self) -> None:
        """The books are wrong, once more."""
        self._num_rebuilds += 1

    @property
    def everyone_ends(self) -> bool:
        """It was no use to end only those who held something: one who waits is to blame."""
        return self._num_rebuilds > 1

    @property
    def is_lost(self) -> bool:
        """It was no use to end everyone either."""
        return self._num_rebuilds > MAX_REBUILDS


def reason_of(error: Exception) -> FinishReason:
    """What clients are told: the first line of the error, which may draw a whole tree."""
    words = str(error).partition("\n")[0][:_MAX_WORDS] or repr(error)[:_MAX_WORDS]
    message = f"the scheduler found its books wrong and emptied its cache: {words}"
    return FinishReason(kind="error", message=message, lost=True)


def report(error: Exception, cache: RadixCache, requests: Iterable[Request]) -> str:
    """The state in which the error was found, for the log: the tree and who holds what."""
    lines = [
        f"the books are wrong: {reason_of(error).message}",
        _drawn(cache),
        *islice(map(_holding, requests), _MAX_REQUESTS),
    ]
    return "\n".join(lines)


def _drawn(cache: RadixCache) -> str:
    try:
        return picture(cache, _MAX_LINES)
    except Exception as error:  # it is broken, after all
        return f"the tree can't be drawn: {error!r}"


def _holding(request: Request) -> str:
    return (
        f"{request.key} {request.phase.name} row {request.table_row}: tree {request.tree_len}, "
        f"kv {request.kv_len}, settled {request.settled_len}, ids {request.num_ids} "
        f"+ {request.num_pending} pending, last step {request.last_step}, {request.handle}"
    )
