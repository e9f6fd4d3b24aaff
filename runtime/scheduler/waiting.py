"""The requests that wait for admission: whose turn it is, and who may not be passed any more.

Tenants take turns by what their requests have computed, divided by their weights; within a
tenant the policy decides. With one tenant, which is all there are unless shares are fair, only
the policy does.

No policy but `priority` starves: a request that later ones of its tenant have passed
`max_passes` times comes first, and if it does not fit then, nothing is admitted before it.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from espalier.radix.lazy_heap import LazyHeap

from .policies import Line
from .request import Phase, Request

_MAX_IDLE_TENANTS = 1024


@dataclass(eq=False, slots=True)
class _Tenant:
    """One tenant's line. `served`: tokens computed for it, divided by its weight."""

    weight: float
    line: Line
    served: float = 0.0
    arrivals: LazyHeap[Request] = field(default_factory=LazyHeap[Request])
    passers: list[int] = field(default_factory=list[int])
    """Serials of admitted requests, as far as older ones still wait; ascending."""

    def oldest(self) -> Request | None:
        return next((request for _, request in self.arrivals.in_order()), None)

    def passes(self, request: Request) -> int:
        """How many later requests were admitted before this one.

        An older request has been passed by all that have passed a newer one, so that the
        oldest is always the first to have been passed too often.
        """
        return len(self.passers) - bisect_right(self.passers, request.serial)


class WaitingQueue:
    """Waiting requests; `max_passes` bounds how often each is passed over.

    `aging`: every later request that is admitted first counts. Without it only those count
    that are admitted when a request did not fit, which the planner counts. `weights` are of
    tenants by name, None if all are one; "*" is for those without one, who else weigh 1.
    """

    def __init__(
        self,
        make_line: Callable[[], Line],
        max_passes: int,
        *,
        aging: bool = True,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self._make_line = make_line
        self._max_passes = max_passes
        self._aging = aging
        self._weights = weights
        self._requests: dict[int, Request] = {}  # by serial
        self._tenants: dict[str, _Tenant] = {}
        self._turns = LazyHeap[str]()  # tenants with requests, by what they were served
        self.num_uncached = 0
        """Tokens of all waiting requests that the cache did not have when they came."""
        self._served = 0.0  # of the tenant whose turn it was last

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def add(self, request: Request) -> None:
        request.phase = Phase.WAITING
        self._requests[request.serial] = request
        self.num_uncached += request.num_uncached
        name, tenant = self._tenant(request)
        if not tenant.arrivals:
            tenant.served = max(tenant.served, self._served)  # nobody saves up while away
            self._turns.put(name, tenant.served)
        tenant.arrivals.put(request, request.serial)
        tenant.line.add(request)

    def remove(self, request: Request) -> None:
        del self._requests[request.serial]
        self.num_uncached -= request.num_uncached
        name, tenant = self._tenant(request)
        tenant.arrivals.discard(request)
        tenant.line.remove(request)
        oldest = tenant.oldest()
        if oldest is None:
            self._turns.discard(name)
            tenant.passers.clear()
        else:
            del tenant.passers[: bisect_right(tenant.passers, oldest.serial)]

    def restart(self, requests: Iterable[Request]) -> None:
        """Hold just these, in lines made anew; what tenants were served stays known.

        After the cache was reset: what stood in the lines may have been wrong, too.
        """
        self._requests.clear()
        self.num_uncached = 0
        self._turns = LazyHeap[str]()
        for tenant in self._tenants.values():
            tenant.arrivals = LazyHeap[Request]()
            tenant.line.clear()
        for request in requests:
            self.add(request)

    def admitted(self, request: Request) -> None:
        """Take out an admitted request; it has passed every earlier one that still waits."""
        _, tenant = self._tenant(request)
        insort(tenant.passers, request.serial)
        self._served = max(self._served, tenant.served)
        self.remove(request)

    def charge(self, request: Request, num_tokens: int) -> None:
        """A step will compute `num_tokens` for a request, which waits or runs."""
        if self._weights is None:
            return
        name, tenant = self._tenant(request)
        tenant.served += num_tokens / tenant.weight
        if tenant.arrivals:
            self._turns.put(name, tenant.served)

    def next(self, passed: Collection[int]) -> Request | None:
        """Whom to try now, without those whose serial is among the `passed` ones."""
        for _, name in self._turns.in_order():
            tenant = self._tenants[name]
            oldest = tenant.oldest()
            if oldest is not None and oldest.serial not in passed and self.is_overdue(oldest):
                return oldest
            if best := tenant.line.best(passed):
                return best
        return None

    def is_overdue(self, request: Request) -> bool:
        """Whether a waiting request must not be passed any more."""
        _, tenant = self._tenant(request)
        passes = tenant.passes(request) if self._aging else request.num_skips
        return passes >= self._max_passes

    def _tenant(self, request: Request) -> tuple[str, _Tenant]:
        name = "" if self._weights is None else request.message.hints.tenant
        tenant = self._tenants.get(name)
        if tenant is None:
            weight = (
                1.0
                if self._weights is None
                else self._weights.get(name, self._weights.get("*", 1.0))
            )
            self._forget_idle_tenants()
            tenant = self._tenants[name] = _Tenant(weight, self._make_line())
        return name, tenant

    def _forget_idle_tenants(self) -> None:
        """Names come from clients: there is no end of them."""
        if len(self._tenants) < _MAX_IDLE_TENANTS + len(self._turns):
            return
        self._tenants = {name: self._tenants[name] for name in self._tenants if name in self._turns}
