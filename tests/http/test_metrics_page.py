"""What is written of the metrics, the page and the dashboard, and what a server exports."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from espalier.runtime.http.metrics import Metrics
from tests.http_serving import Serving, serving

DOCS = Path(__file__).resolve().parents[2] / "docs"
UNITS = {
    *("seconds", "tokens", "requests", "steps", "retractions", "rebuilds", "share"),
    *("compilations", "bytes", "outputs"),
}
NO_LABELS = {"le"}  # a histogram's own


@pytest.fixture(scope="module")
def families() -> Iterator[list[Metric]]:
    """Of a server that has answered a request."""
    with serving() as server:
        server.ok("/generate", {"text": "a b c", "sampling_params": {"max_new_tokens": 3}})
        yield exported(server)


def exported(server: Serving) -> list[Metric]:
    return list(text_string_to_metric_families(server.get("/metrics").text))


def name_of(family: Metric) -> str:
    return family.name + ("_total" if family.type == "counter" else "")


def table(*columns: str) -> list[list[str]]:
    """The rows of all tables of the page with these columns; code marks are taken off."""
    rows: list[list[str]] = []
    for part in (DOCS / "metrics.md").read_text().split("\n\n"):
        lines = [[c.strip() for c in line.strip("|").split("|")] for line in part.splitlines()]
        if lines[0] == list(columns):
            rows += [[cell.replace("`", "") for cell in line] for line in lines[2:]]
    return rows


def test_the_page_lists_each_metric_with_its_meaning(families: list[Metric]) -> None:
    written = {
        name: (kind, labels, meaning)
        for name, kind, labels, _, meaning in table("metric", "type", "labels", "unit", "meaning")
    }
    assert written == {
        name_of(f): (
            f.type,
            ", ".join(sorted({label for s in f.samples for label in s.labels} - NO_LABELS)),
            f.documentation,
        )
        for f in families
    }


def test_the_units_are_those_of_the_names() -> None:
    for name, _, _, unit, _ in table("metric", "type", "labels", "unit", "meaning"):
        assert unit in UNITS, name
        assert name.endswith("_seconds") == (unit == "seconds"), name


def test_the_page_lists_each_value_of_a_label(families: list[Metric]) -> None:
    written = {(label, value) for label, value, _ in table("label", "value", "meaning")}
    assert written == {
        (label, value)
        for family in families
        for sample in family.samples
        for label, value in sample.labels.items()
        if label not in NO_LABELS
    }


def test_clients_make_no_new_series(families: list[Metric]) -> None:
    """The labels are the same before any request, and after some that were made to differ."""
    with serving() as server:
        before = series(exported(server))
        for index in range(3):
            fields = {"rid": f"r{index}", "tenant": f"t{index}", "cache_salt": f"s{index}"}
            sampling = {"max_new_tokens": index + 1, "stop": [f"stop {index}"]}
            server.ok("/generate", {"text": "a", "sampling_params": sampling, **fields})
        assert series(exported(server)) == before == series(families)


def series(families: list[Metric]) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    return {(s.name, tuple(sorted(s.labels.items()))) for f in families for s in f.samples}


def expressions(dashboard: Any) -> list[str]:
    """All queries of a dashboard, those of its variables too."""
    queries = [t["expr"] for panel in dashboard["panels"] for t in panel.get("targets", ())]
    return queries + [v["definition"] for v in dashboard["templating"]["list"] if "definition" in v]


def test_the_dashboard_asks_for_what_is_exported(families: list[Metric]) -> None:
    samples = {sample.name for family in families for sample in family.samples}
    asked = {
        name
        for expression in expressions(json.loads((DOCS / "grafana.json").read_text()))
        for name in re.findall(r"\bespalier\w*", expression)
    }
    assert asked <= samples
    shown = {f.name for f in families if any(s.name in asked for s in f.samples)}
    assert shown == {f.name for f in families}, "the dashboard leaves some out"


def test_the_dashboard_can_be_imported() -> None:
    """No data source and no number of an installation's own is in it."""
    dashboard = json.loads((DOCS / "grafana.json").read_text())
    assert "id" not in dashboard and dashboard["schemaVersion"] >= 36  # Grafana 10 reads these
    (source,) = [v for v in dashboard["templating"]["list"] if v["type"] == "datasource"]
    wanted = {"type": "prometheus", "uid": f"${{{source['name']}}}"}
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in panels:
        assert panel["datasource"] == wanted
        assert all(target["datasource"] == wanted for target in panel["targets"])
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24


def test_without_the_scheduler_its_part_is_left_out(families: list[Metric]) -> None:
    of_requests = {family.name for family in Metrics().collect()}
    assert of_requests < {family.name for family in families}
