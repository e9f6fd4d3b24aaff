"""What is known of a request when it arrives, and goes with it until there are outputs."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from ..client import OpenCalls
from .metrics import now
from .outputs import Outputs
from .service import Service


@dataclass(frozen=True, slots=True)
class Arrival:
    """`at_s` is of `metrics.now`."""

    at_s: float
    request: Request

    @classmethod
    def of(cls, request: Request) -> Arrival:
        """One that arrives now."""
        return cls(now(), request)

    def outputs(self, service: Service, opened: OpenCalls) -> Outputs:
        """The outputs of what it asked for: measured, and traced if traces are wanted."""
        trace = None
        if service.tracing is not None:
            path: str = self.request.scope["path"]
            trace = service.tracing.begin(path, self.request.headers, self.at_s)
        return Outputs(opened, service.metrics, started_s=self.at_s, trace=trace)
