"""What every route is given; decides nothing but which model names are served."""

from __future__ import annotations

from dataclasses import dataclass

from ..client import RuntimeClient
from ..config import ServerConfig
from .errors import ModelNotFound
from .metrics import Metrics
from .tracing import Tracing

DEFAULT_MODEL = "default"
"""The name under which the served model is always found."""


@dataclass(frozen=True, slots=True)
class Service:
    """One server's parts. `started_at` is in seconds since the epoch."""

    client: RuntimeClient
    config: ServerConfig
    model_name: str
    model_path: str
    metrics: Metrics
    started_at: float
    tracing: Tracing | None = None

    def check_model(self, name: str | None) -> None:
        """Raise `ModelNotFound` unless `name` is one of the served model's, or None."""
        if name not in (None, DEFAULT_MODEL, self.model_name, self.model_path):
            raise ModelNotFound(
                f"the model {name!r:.200} is not served here: the model is {self.model_name!r}, "
                f"also called {DEFAULT_MODEL!r}"
            )
