"""Cache namespaces out of what callers may set; two different settings never share tokens."""

from __future__ import annotations


def namespace_of(cache_salt: str | None, extra_key: str | None) -> tuple[str, ...]:
    """The namespace for these, compared by value: each stands beside its own name."""
    given = (("cache_salt", cache_salt), ("extra_key", extra_key))
    return tuple(part for name, value in given if value is not None for part in (name, value))
