"""Errors of the runtime in the words of the caller: its names of fields are not OpenAI's."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from ...errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class FieldNames:
    """How one request calls what the runtime calls otherwise.

    prompt: the field of the prompt.
    renamed: the runtime's names to the caller's.
    constraint: the field that asks for the constraint, None if there is none.
    """

    prompt: str
    renamed: Mapping[str, str]
    constraint: str | None

    @contextmanager
    def told(self, default: str | None) -> Generator[None]:
        """Refusals inside name the caller's fields, `default` where they name none."""
        try:
            yield
        except InvalidRequest as error:
            if error.param is None:
                raise InvalidRequest(self._of_constraint(str(error)), param=default) from None
            if error.param not in self.renamed:
                raise
            pattern = rf"\b({'|'.join(self.renamed)})\b"
            message = re.sub(pattern, lambda found: self.renamed[found[0]], str(error))
            raise InvalidRequest(message, param=self.renamed[error.param]) from None

    def _of_constraint(self, message: str) -> str:
        """A compiler's words begin with what the runtime calls the constraint."""
        ours, colon, rest = message.partition(":")
        is_renamed = self.constraint is not None and ours in self.renamed
        return f"{self.renamed[ours]}{colon}{rest}" if is_renamed else message
