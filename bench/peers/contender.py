"""What a contender is: a server of completions, how it is started, and what it can do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.peers.completions import Fields, json_schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One engine at one precision.

    command: what starts it on a port of the loopback interface.
    needs: files or directories that its setup leaves.
    ready_path: answers 200 once completions are served.
    fields: of a request body, beside those that all contenders get; schema_fields: those that
    ask for JSON of a schema.
    works: names of the works it can do at all (None: every one).
    """

    name: str
    engine: str
    command: Callable[[int], list[str]]
    needs: tuple[Path, ...] = ()
    ready_path: str = "/health"
    fields: Fields = field(default_factory=dict[str, object])
    schema_fields: Callable[[Fields], Fields] = json_schema
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    works: frozenset[str] | None = None

    def can(self, work: str) -> bool:
        return self.works is None or work in self.works


OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "CI": "true",  # OpenVINO's telemetry knows no other switch
}
"""Environment in which the peers' libraries look nothing up and report nothing."""
