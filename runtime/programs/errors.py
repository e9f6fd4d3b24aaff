"""The errors that only programs have: a failed branch, an output that is not its type."""

from __future__ import annotations

from ..errors import EspalierError
from ..messages import FinishReason


class BranchError(EspalierError):
    """Branch `index` of a fork failed; its siblings were cancelled. `__cause__` is why."""

    def __init__(self, index: int, cause: BaseException) -> None:
        super().__init__(f"branch {index} failed: {type(cause).__name__}: {cause}")
        self.index = index
        self.__cause__ = cause


class OutputError(EspalierError):
    """A variable's text can't be read as the type asked for; `text` is that text."""

    def __init__(self, name: str, text: str, finish: FinishReason, cause: Exception) -> None:
        why = (
            "the output was cut at max_tokens"
            if finish.kind == "length"
            else f"{type(cause).__name__}: {cause}"
        )
        super().__init__(f"variable {name!r} can't be read as its type ({why}): {text!r}")
        self.name = name
        self.text = text
        self.finish = finish
