"""Cache namespaces and scheduling hints out of what callers may set."""

from __future__ import annotations

from ..messages import MAX_LEASE_S, SchedulingHints
from ..sampling.params import check_float, check_int

_MOST = 2**31 - 1


def namespace_of(cache_salt: str | None, extra_key: str | None) -> tuple[str, ...]:
    """The namespace for these, compared by value: each stands beside its own name.

    Two different settings never share tokens.
    """
    given = (("cache_salt", cache_salt), ("extra_key", extra_key))
    return tuple(part for name, value in given if value is not None for part in (name, value))


def hints_of(
    priority: int | None, stages_left: int | None, tenant: str | None, lease: float | None
) -> SchedulingHints:
    """Raises `InvalidRequest` naming what is out of its range."""
    priority = 0 if priority is None else priority
    stages_left = 1 if stages_left is None else stages_left
    lease_s = 0.0 if lease is None else lease
    check_int("priority", priority, -_MOST, _MOST)
    check_int("stages_left", stages_left, 1, _MOST)
    check_float("lease", lease_s, 0.0, MAX_LEASE_S)
    return SchedulingHints(
        priority=priority, stages_left=stages_left, tenant=tenant or "", lease_s=lease_s
    )
