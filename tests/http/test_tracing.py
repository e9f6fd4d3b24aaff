"""Traces: which spans a request has, on whose trace, and that they arrive at a collector."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

from espalier.runtime.config import ServerConfig
from espalier.runtime.errors import InvalidRequest
from espalier.runtime.http.tracing import Tracing, check_endpoint
from espalier.runtime.processes.launcher import Launcher
from tests.http_serving import Serving, serving

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT_ID = "b7ad6b7169203331"


def _is_installed() -> bool:
    """The interface alone does not do: other libraries bring it."""
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False


is_installed = _is_installed()
needs_opentelemetry = pytest.mark.skipif(
    not is_installed, reason="OpenTelemetry is not installed: the extra `otel`"
)


@dataclass(slots=True)
class Traced:
    """A server and where its spans end up, complete after `close`."""

    server: Serving
    tracing: Tracing
    exporter: Any

    def spans(self) -> list[Any]:
        self.tracing.close()
        return list(self.exporter.get_finished_spans())


@pytest.fixture
def traced() -> Iterator[Traced]:
    memory = import_module("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    exporter = memory.InMemorySpanExporter()
    tracing = Tracing(exporter, "tiny")
    with serving(tracing=tracing) as server:
        yield Traced(server, tracing, exporter)
    tracing.close()


def body(**fields: object) -> dict[str, object]:
    sampling = {"max_new_tokens": 4, "ignore_eos": True, **fields}
    return {"text": "Once upon a time", "sampling_params": sampling}


def of_request(spans: list[Any]) -> tuple[Any, list[Any]]:
    """The one span of a request, and those below it."""
    (root,) = [span for span in spans if span.kind.name == "SERVER"]
    stages = [span for span in spans if span is not root]
    assert all(span.parent.span_id == root.context.span_id for span in stages)
    return root, stages


@needs_opentelemetry
def test_the_stages_of_a_request(traced: Traced) -> None:
    traced.server.ok("/generate", body())
    root, stages = of_request(traced.spans())
    assert (root.name, root.parent) == ("/generate", None)
    assert root.attributes["gen_ai.request.model"] == "tiny"
    assert root.attributes["espalier.num_abandoned"] == 0
    assert [span.name for span in stages] == ["queue", "prefill", "decode", "detokenize"]
    for before, after in zip(stages, stages[1:], strict=False):
        assert before.start_time <= before.end_time == after.start_time
    assert root.start_time <= stages[0].start_time
    assert stages[-1].end_time <= root.end_time
    decode = stages[2].attributes
    assert decode["gen_ai.usage.output_tokens"] == 4
    assert decode["gen_ai.response.finish_reason"] == "length"


@needs_opentelemetry
def test_a_constrained_request_waits_for_its_grammar(traced: Traced) -> None:
    traced.server.ok("/generate", body(regex="[a-z]{9}", ignore_eos=False))
    _, stages = of_request(traced.spans())
    assert [span.name for span in stages] == ["grammar", "queue", "prefill", "decode", "detokenize"]


@needs_opentelemetry
@pytest.mark.parametrize("stream", [False, True])
def test_each_choice_has_stages(traced: Traced, stream: bool) -> None:
    response = traced.server.post(
        "/v1/completions", {"prompt": "a", "max_tokens": 2, "n": 2, "stream": stream}
    )
    assert response.status_code == 200
    root, stages = of_request(traced.spans())
    assert root.name == "/v1/completions"
    decodes = [span.attributes["espalier.choice"] for span in stages if span.name == "decode"]
    assert sorted(decodes) == [0, 1]


@needs_opentelemetry
def test_a_callers_trace_goes_on(traced: Traced) -> None:
    headers = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}
    traced.server.post("/generate", body(), headers=headers)
    spans = traced.spans()
    root, _ = of_request(spans)
    assert root.parent.span_id == int(PARENT_ID, 16) and root.parent.is_remote
    assert {span.context.trace_id for span in spans} == {int(TRACE_ID, 16)}


@needs_opentelemetry
def test_a_caller_may_want_no_trace(traced: Traced) -> None:
    headers = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-00"}
    assert traced.server.post("/generate", body(), headers=headers).status_code == 200
    assert traced.spans() == []


@needs_opentelemetry
@pytest.mark.parametrize("parent", ["", "00-zz", "00-" + "0" * 32 + f"-{PARENT_ID}-01", "x" * 9000])
def test_a_bad_header_is_as_none(traced: Traced, parent: str) -> None:
    headers = {"traceparent": parent}
    assert traced.server.post("/generate", body(), headers=headers).status_code == 200
    root, _ = of_request(traced.spans())
    assert root.parent is None


@needs_opentelemetry
def test_a_failed_request_says_so(traced: Traced) -> None:
    response = traced.server.post("/generate", body(ebnf="root ::= nowhere"))
    assert response.status_code == 400
    root, stages = of_request(traced.spans())
    assert root.status.status_code.name == "ERROR" and root.status.description
    assert [span.name for span in stages] == ["grammar", "queue", "detokenize"]


@needs_opentelemetry
def test_spans_arrive_at_a_collector() -> None:
    received: list[tuple[str, bytes]] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Collector) as collector:
        thread = threading.Thread(target=collector.serve_forever)
        thread.start()
        try:
            tracing = Tracing.to_collector(f"http://127.0.0.1:{collector.server_port}/", "tiny")
            with serving(tracing=tracing) as server:
                server.ok("/generate", body())
            tracing.close()
        finally:
            collector.shutdown()
            thread.join()
    assert [path for path, _ in received] == ["/v1/traces"]
    service = import_module("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    request = service.ExportTraceServiceRequest.FromString(received[0][1])
    (resource,) = request.resource_spans
    names = {span.name for scope in resource.scope_spans for span in scope.spans}
    assert names == {"/generate", "queue", "prefill", "decode", "detokenize"}


def test_without_tracing_no_times_are_asked_for() -> None:
    with serving() as server:
        server.ok("/generate", body())
        assert server.service.tracing is None


def test_nothing_is_imported_while_nobody_wants_traces() -> None:
    code = (
        "import sys, espalier.runtime.processes.tokenizer\n"
        "from espalier.runtime.config import ServerConfig\n"
        "ServerConfig.of()\n"
        "ours = ('opentelemetry.sdk', 'opentelemetry.exporter')\n"
        "assert not [name for name in sys.modules if name.startswith(ours)]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(is_installed, reason="OpenTelemetry is installed")
def test_asked_for_and_not_installed() -> None:
    with pytest.raises(InvalidRequest, match=r"espalier-lm\[otel\]") as refused:
        Launcher(ServerConfig.of(otlp_endpoint="http://127.0.0.1:4318"))
    assert refused.value.param == "otlp_endpoint"


@needs_opentelemetry
def test_asked_for_and_installed() -> None:
    check_endpoint("http://127.0.0.1:4318")


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4317", "grpc://x", ""])
def test_only_urls_are_endpoints(endpoint: str) -> None:
    with pytest.raises(InvalidRequest, match="URL") as refused:
        Launcher(ServerConfig.of(otlp_endpoint=endpoint))
    assert refused.value.param == "otlp_endpoint"
