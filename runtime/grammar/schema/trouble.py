"""What stops a schema from becoming a grammar, and where it stands; knows no schema."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pointer:
    """Where a schema stands. Written out only to be read: names may be long, schemas many."""

    parent: Pointer | None = None
    token: str = "#"

    def __truediv__(self, token: str) -> Pointer:
        return Pointer(self, token)

    def __str__(self) -> str:
        if self.parent is None:
            return self.token
        token = self.token.replace("~", "~0").replace("/", "~1")
        return f"{self.parent}/{token}"


ROOT = Pointer()


class SchemaTrouble(Exception):
    """The schema can't be enforced. `keyword` is what can't be, None if it is no one keyword."""

    def __init__(self, pointer: Pointer, trouble: str, *, keyword: str | None = None) -> None:
        if keyword is not None and f"'{keyword}'" not in trouble:
            trouble = f"'{keyword}': {trouble}"
        super().__init__(f"at {pointer!s:.200}: {trouble}")
        self.pointer, self.keyword = pointer, keyword


class Malformed(SchemaTrouble):
    """It is no schema: a keyword has a value that it can't have, a reference leads nowhere."""


class Unenforceable(SchemaTrouble):
    """It is a schema, but no grammar of ours says what it says."""


class Unsatisfiable(Unenforceable):
    """No text at all would do."""


class TooComplex(SchemaTrouble):
    """A bound on branches, rules or time is reached."""
