"""Traces of requests: one span each, and below it one a stage, to an OTLP/HTTP collector.

OpenTelemetry's SDK is imported when a `Tracing` is made, and not before. Stages are told from the
times that come with a choice's last chunk; nothing is measured here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Protocol, cast

from ..errors import InvalidRequest
from ..messages import FinishReason, RequestTimes
from ..programs.backend import GenerateChunk

_EXPORT_TIMEOUT_S = 5.0

Attributes = Mapping[str, str | int]


class Span(Protocol):
    """OpenTelemetry's, as far as it is used here; times are nanoseconds since the epoch."""

    def set_attribute(self, key: str, value: str | int) -> None: ...
    def set_status(self, status: object, description: str | None = None) -> None: ...
    def end(self, end_time: int | None = None) -> None: ...


class _Tracer(Protocol):
    def start_span(
        self, name: str, *, context: object, kind: object, attributes: Attributes, start_time: int
    ) -> Span: ...


class Tracing:
    """Where spans go: to `exporter`, one of OpenTelemetry's, in batches and on another thread."""

    def __init__(self, exporter: object, model_name: str) -> None:
        sdk = import_module("opentelemetry.sdk.trace")
        export = import_module("opentelemetry.sdk.trace.export")
        resources = import_module("opentelemetry.sdk.resources")
        w3c = import_module("opentelemetry.trace.propagation.tracecontext")
        self._api = import_module("opentelemetry.trace")
        self._propagator = w3c.TraceContextTextMapPropagator()
        resource = resources.Resource.create({"service.name": "espalier"})
        self._provider = sdk.TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(export.BatchSpanProcessor(exporter))
        self._tracer = cast(_Tracer, self._provider.get_tracer("espalier"))
        self._model_name = model_name

    @classmethod
    def to_collector(cls, endpoint: str, model_name: str) -> Tracing:
        """Export to the collector with the base URL `endpoint`."""
        otlp = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        url = f"{endpoint.rstrip('/')}/v1/traces"
        return cls(otlp.OTLPSpanExporter(endpoint=url, timeout=_EXPORT_TIMEOUT_S), model_name)

    def begin(self, path: str, headers: Mapping[str, str], started_s: float) -> RequestTrace:
        """The trace of a request to `path` that came at `started_s` of the monotonic clock.

        It goes on the caller's, if the headers name one (W3C Trace Context).
        """
        named = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
        clock = _WallClock()
        span = self._tracer.start_span(
            path,
            context=self._propagator.extract(named),
            kind=self._api.SpanKind.SERVER,
            attributes={
                "url.path": path,
                "gen_ai.operation.name": "text_completion",
                "gen_ai.request.model": self._model_name,
            },
            start_time=clock.nanoseconds(started_s),
        )
        return RequestTrace(self._tracer, self._api, span, clock)

    def close(self) -> None:
        """Send what is left, for a few seconds at most."""
        self._provider.shutdown()


class RequestTrace:
    """The span of one request, open until `end`."""

    def __init__(self, tracer: _Tracer, api: Any, span: Span, clock: _WallClock) -> None:
        self._tracer = tracer
        self._api = api
        self._span = span
        self._clock = clock
        self._is_open = True

    def choice_ended(self, rid: str, chunk: GenerateChunk) -> None:
        """The last chunk of a choice is here: its stages are over."""
        assert chunk.finish is not None, "it is not the last chunk"
        here_s = time.monotonic()
        if chunk.times is not None:
            attributes = _attributes(rid, chunk)
            for stage, start_s, end_s in _stages(chunk.times, here_s):
                self._stage(stage, start_s, end_s, attributes)
        if chunk.finish.kind == "error":
            self._failed(chunk.finish)

    def end(self, num_abandoned: int) -> None:
        """The request is over; `num_abandoned` choices were not read to their end."""
        if self._is_open:
            self._is_open = False
            self._span.set_attribute("espalier.num_abandoned", num_abandoned)
            self._span.end()

    def _stage(self, name: str, start_s: float, end_s: float, attributes: Attributes) -> None:
        span = self._tracer.start_span(
            name,
            context=self._api.set_span_in_context(self._span),
            kind=self._api.SpanKind.INTERNAL,
            attributes=attributes,
            start_time=self._clock.nanoseconds(start_s),
        )
        span.end(self._clock.nanoseconds(end_s))

    def _failed(self, finish: FinishReason) -> None:
        self._span.set_status(self._api.StatusCode.ERROR, finish.message)


def check_endpoint(endpoint: str) -> None:
    """Raise `InvalidRequest` unless traces can be sent to the collector with this base URL."""
    if not endpoint.startswith(("http://", "https://")):
        raise InvalidRequest(
            f"--otlp-endpoint must be an http:// or https:// URL, not {endpoint!r}",
            param="otlp_endpoint",
        )
    try:
        import_module("opentelemetry.sdk.trace")
        import_module("opentelemetry.exporter.otlp.proto.http")
    except ModuleNotFoundError as error:
        raise InvalidRequest(
            f"--otlp-endpoint needs OpenTelemetry: pip install 'espalier-lm[otel]' ({error})",
            param="otlp_endpoint",
        ) from error


class _WallClock:
    """The monotonic clock's seconds as nanoseconds since the epoch; for one request, as the
    difference changes when the machine's clock is set."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def nanoseconds(self, seconds: float) -> int:
        return int(seconds * 1e9) + self._offset_ns


def _stages(times: RequestTimes, here_s: float) -> Iterator[tuple[str, float, float]]:
    """What a choice went through: name, start and end; one that was cut short ends with it.

    From its end in the scheduler to here it was with the detokenizer.
    """
    ready_s = times.grammar_s or times.accepted_s
    if times.grammar_s:
        yield "grammar", times.accepted_s, times.grammar_s
    yield "queue", ready_s, times.scheduled_s or times.ended_s
    if times.scheduled_s:
        yield "prefill", times.scheduled_s, times.first_token_s or times.ended_s
    if times.first_token_s:
        yield "decode", times.first_token_s, times.ended_s
    yield "detokenize", times.ended_s, here_s


def _attributes(rid: str, chunk: GenerateChunk) -> Attributes:
    assert chunk.finish is not None
    found: dict[str, str | int] = {
        "espalier.rid": rid,
        "espalier.choice": chunk.choice,
        "gen_ai.response.finish_reason": chunk.finish.kind,
    }
    if chunk.usage is not None:
        found["gen_ai.usage.input_tokens"] = chunk.usage.prompt_tokens
        found["gen_ai.usage.output_tokens"] = chunk.usage.completion_tokens
        found["espalier.cached_tokens"] = chunk.usage.cached_tokens
        found["espalier.forced_tokens"] = chunk.usage.forced_tokens
        found["espalier.num_retractions"] = chunk.usage.num_retractions
    return found
