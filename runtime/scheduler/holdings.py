"""What requests hold of the device: table rows, path locks and slots; moves them, exactly.

A request takes a table row and locks its matched path when it is admitted, gets slots as its
tokens are planned, and hands everything back when it leaves. What a step in flight may still
touch is handed back only after that step has settled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from espalier.radix.cache import Handle, RadixCache
from espalier.radix.check import AccountingError, checking
from espalier.radix.leases import Leases
from espalier.radix.picture import picture
from espalier.radix.tree import Node, ancestry

from .request import Phase, Request
from .step import IntArray, TableWrite

_NONE: IntArray = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class _Departure:
    """A path lock and a table row that go back when `last_step` has settled."""

    last_step: int
    handle: Handle
    table_row: int
    priority: int


class Holdings:
    """The books between requests, the radix cache and the table rows.

    With `share` off nothing enters the tree: every slot is private to its request. `leases`
    are of the same cache; they yield whenever a request would go without slots.
    """

    def __init__(self, cache: RadixCache, leases: Leases, num_rows: int, *, share: bool) -> None:
        self._cache = cache
        self._leases = leases
        self._share = share
        self._num_rows = num_rows
        self._free_rows = list(range(num_rows - 1, -1, -1))
        self._departures: deque[_Departure] = deque()
        self._settled_step = -1

    @property
    def num_free_rows(self) -> int:
        return len(self._free_rows)

    @property
    def num_available(self) -> int:
        """Slots that are free, or can be evicted now, if need be after leases have yielded."""
        return self._cache.num_available + self._cache.num_yieldable

    def uncached_len(self, request: Request) -> int:
        """How many of a waiting request's tokens the tree does not hold now."""
        if not self._shares(request):
            return request.num_ids
        ids = request.ids[: request.num_ids]
        match = self._cache.match_prefix(request.message.namespace, ids, request.match_cap)
        return request.num_ids - match.length

    def fits(self, request: Request, reserve: int) -> bool:
        """Whether `admit` would succeed now, a row apart."""
        handle = self._lock_match(request)
        fits = self.num_available >= request.num_ids - handle.length + reserve
        self._cache.unlock(handle)
        return fits

    def admit(self, request: Request, reserve: int) -> TableWrite | None:
        """Give a waiting request a row and its matched prefix, if all else it knows fits.

        `reserve` slots must stay available for others besides. None: it does not fit now.
        """
        if not self._free_rows:
            return None
        handle = self._lock_match(request)
        if self.num_available < request.num_ids - handle.length + reserve:
            self._cache.unlock(handle)
            return None
        request.phase = Phase.RUNNING
        request.table_row = self._free_rows.pop()
        request.handle = handle
        request.tree_len = request.kv_len = request.settled_len = handle.length
        request.promise_len = request.num_ids
        if request.in_first_prompt:
            request.num_cached = min(handle.length, request.prompt_len)
        request.has_unwritten = False
        slots = self._cache.slots_of(handle)
        request.slots[: handle.length] = slots
        return TableWrite(request.table_row, 0, request.ids[: request.num_ids], slots)

    def _lock_match(self, request: Request) -> Handle:
        ids = request.ids[: request.num_ids]
        cap = request.match_cap if self._shares(request) else 0
        return self._cache.lock(self._cache.match_prefix(request.message.namespace, ids, cap))

    def match_deeper(self, request: Request) -> TableWrite | None:
        """Take what others have put into the tree since, right behind the request's path."""
        start, cap = request.tree_len, request.match_cap
        if not self._shares(request) or request.kv_len != start or start >= cap:
            return None
        old = _held(request)
        deeper = self._cache.extend_match(old, request.ids[start:cap])
        if deeper.length == start:
            return None
        request.handle = self._cache.lock(deeper)
        self._cache.unlock(old)
        slots = self._cache.slots_of(request.handle, start)
        request.slots[start : deeper.length] = slots
        request.tree_len = request.kv_len = request.settled_len = deeper.length
        if request.in_first_prompt:
            request.num_cached += max(0, min(deeper.length, request.prompt_len) - start)
        return TableWrite(request.table_row, start, _NONE, slots)

    def grow(self, request: Request, num_new: int, step: int) -> TableWrite | None:
        """Slots for the next `num_new` tokens, computed by `step`; None if there are none.

        Tokens known at admission enter the tree at once, as promises; later ones, and those
        that the tree has already, stay private. Leases yield as far as that needs. Ids that
        the device lacks are written as well.
        """
        if num_new > self.num_available:
            return None
        self._leases.make_room(num_new)
        slots = self._cache.alloc(num_new)
        assert slots is not None, f"{num_new} slots were available"
        start, end = request.kv_len, request.kv_len + num_new
        request.slots[start:end] = slots
        if self._may_promise(request, end):
            request.handle = self._cache.promise(
                _held(request), request.ids[start:end], slots, step=step
            )
            request.tree_len = end
        request.kv_len = end
        request.last_step = step
        ids = request.ids[start : request.num_ids] if request.has_unwritten else _NONE
        request.has_unwritten = False
        return TableWrite(request.table_row, start, ids, slots)

    def take_back(self, request: Request) -> None:
        """The last token that has slots is another one: it is to be computed again."""
        place = request.kv_len - 1
        slots = request.slots[place : request.kv_len].copy()
        self._cache.release(slots, after_step=request.last_step)
        request.kv_len = place

    def _shares(self, request: Request) -> bool:
        return self._share and not request.quarantined

    def _may_promise(self, request: Request, end: int) -> bool:
        start = request.kv_len
        if not self._shares(request) or start != request.tree_len or end > request.promise_len:
            return False
        ahead = self._cache.extend_match(_held(request), request.ids[start : start + 1])
        return ahead.length == start

    def touched_in_flight(self, request: Request) -> bool:
        """Whether a step that has not settled yet reads or fills what the request holds."""
        return request.last_step > self._settled_step

    def leave(self, request: Request, *, lease_s: float = 0.0) -> None:
        """Take back all that `request` holds; its settled tokens stay cached.

        They are leased for so long, if leases may be as many.
        """
        tree_len, kv_len = request.tree_len, request.kv_len
        settled = max(request.settled_len, tree_len)
        after = request.last_step if self.touched_in_flight(request) else None
        handle = _held(request)
        if self._shares(request) and settled > tree_len:
            handle = self._cache.insert(
                handle,
                request.ids[tree_len:settled],
                request.slots[tree_len:settled].copy(),
                after_step=after,
            )
        else:
            settled = tree_len
        self._cache.release(request.slots[settled:kv_len].copy(), after_step=after)
        if lease_s > 0:
            self._leases.take(handle, lease_s)
        priority = request.message.hints.priority
        departure = _Departure(request.last_step, handle, request.table_row, priority)
        if after is None:
            self._depart(departure)
        else:
            self._departures.append(departure)
        request.vacated()

    def flush(self) -> int:
        """Forget all that no request uses, what is leased too; how many tokens those were."""
        self._leases.clear()
        return self._cache.flush()

    def settle(self, step: int) -> None:
        """`step` is over: its promises are kept, and what waited for it goes back."""
        self._settled_step = step
        self._cache.settle(step)
        waiting = [d for d in self._departures if d.last_step > step]
        for departure in self._departures:
            if departure.last_step <= step:
                self._depart(departure)
        self._departures = deque(waiting)

    def _depart(self, departure: _Departure) -> None:
        self._cache.note_use(departure.handle, departure.priority)
        self._cache.unlock(departure.handle)
        self._free_rows.append(departure.table_row)

    def roll_back(self, request: Request, doomed: Callable[[Node], bool]) -> None:
        """Put a request back to what is settled and sound.

        Only when the device is drained: nothing may be in flight.
        """
        old = _held(request)
        anchor = self._cache.sound_ancestor(old, doomed)
        cut = anchor.length < request.tree_len
        sound = request.tree_len if cut else max(request.settled_len, request.tree_len)
        self._cache.release(request.slots[sound : request.kv_len].copy(), after_step=None)
        if cut:
            request.handle = self._cache.lock(anchor)
            self._cache.unlock(old)
            request.tree_len = sound = anchor.length
            request.promise_len = request.num_ids
            if request.has_sampled_none:
                request.num_cached = min(request.num_cached, sound)
        request.kv_len = request.settled_len = sound
        request.num_pending = 0

    def whole_row(self, request: Request) -> TableWrite:
        """Everything that the device must know of a request, for when it may have lost some."""
        ids, slots = request.ids[: request.num_ids], request.slots[: request.kv_len].copy()
        return TableWrite(request.table_row, 0, ids, slots)

    def fail(self, last_step: int, doomed: Callable[[Node], bool]) -> None:
        """All steps up to `last_step` are over; those not settled have failed.

        Withdraws the nodes that those promised and the doomed ones. Every request that held
        such a node has been rolled back before; leases on them end here.
        """
        self._leases.roll_back(doomed)
        for departure in self._departures:
            self._depart(departure)
        self._departures.clear()
        if last_step > self._settled_step:
            self._settled_step = last_step
            self._cache.fail(last_step)
        self._cache.withdraw(doomed)

    def reset(self, last_step: int) -> None:
        """Forget all that anyone holds: the device is drained, and nothing was right any more.

        `last_step` is the newest one launched.
        """
        self._free_rows = list(range(self._num_rows - 1, -1, -1))
        self._departures.clear()
        self._settled_step = last_step
        self._leases.forget()
        self._cache.reset(last_step)

    def recounting(self) -> Iterator[None]:
        """Recount the books of an idle scheduler, in pieces; raises AccountingError at the end."""
        yield from checking(self._cache, leases=self._leases)
        cache = self._cache
        if sorted(self._free_rows) != list(range(self._num_rows)) or self._departures:
            raise AccountingError(
                f"nobody runs, but of {self._num_rows} rows only these are free: "
                f"{self._free_rows}; {len(self._departures)} departures"
            )
        if cache.num_evictable + cache.num_yieldable != cache.num_cached:
            raise AccountingError(
                f"nobody runs, but something is locked by no lease\n{picture(cache, 200)}"
            )

    def path(self, request: Request) -> list[Node]:
        """The nodes that a request's prefix runs through, deepest first."""
        return [node for node in ancestry(_held(request).node) if not node.is_root]


def _held(request: Request) -> Handle:
    assert request.handle is not None, f"request {request.key} holds no path"
    return request.handle
