"""The main job: extract a typed record, think in three branches at once, decide.

    python examples/main_job.py

Runs on the default model (`espalier pull smollm2` once before), on processes that it starts
and ends itself. The text is printed as it comes. The summary at the end shows what the radix
cache saved: the branches share everything before their question, so it is computed once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from time import perf_counter
from typing import Literal

from pydantic import BaseModel, Field

import espalier as esp

HANDBOOK = """You are a site reliability engineer. Keep to the handbook.
1. An incident is high if customers can't pay or lose data, medium if a feature is slow or
missing for many, low if only staff notice.
2. Page the on-call engineer for anything high. Wait for the morning with the rest, unless it
gets worse within the hour.
3. Every review names the cause, the effect on customers, and one thing to do next.
4. Write plainly and briefly. Do not guess numbers that the report does not give."""

EXAMPLE_REPORT = """At 09:30 the search service was slow for 12 minutes. About 300 customers
saw old results."""

REPORT = """At 02:14 the checkout service began to refuse card payments. A new release had
halved its database connection pool, so requests queued and timed out. About 1,200 customers
could not pay until the release was rolled back at 03:01, 47 minutes later."""

QUESTIONS = {
    "cause": "In one sentence: what was the cause?",
    "effect": "In one sentence: what did customers notice?",
    "next step": "In one sentence: what should the team check before the next release?",
}
VERDICTS = ["page the on-call engineer", "wait for the morning", "do nothing"]


class Incident(BaseModel):
    """What the program extracts; the field limits become part of the grammar."""

    service: str = Field(max_length=24)
    severity: Literal["low", "medium", "high"]
    minutes_down: int = Field(ge=0, le=1440)
    customers: int = Field(ge=0, le=100_000)


EXAMPLE = Incident(service="search", severity="medium", minutes_down=12, customers=300)


@esp.function
def review(s: esp.ProgramState, report: str) -> Incident:
    s += esp.system(HANDBOOK)
    s += esp.user(f"Report: {EXAMPLE_REPORT}\nWrite the incident as JSON.")
    s += esp.assistant(EXAMPLE.model_dump_json())
    s += esp.user(f"Report: {report}\nWrite the incident as JSON.")
    s += esp.assistant(esp.gen("incident", schema=Incident, max_tokens=100))
    show("record", s.text_iter("incident"))

    branches = s.fork(len(QUESTIONS))
    for branch, question in zip(branches, QUESTIONS.values(), strict=True):
        branch += esp.user(question)
        branch += esp.assistant(esp.gen("answer", max_tokens=40, stop="\n"))
    for branch, topic in zip(branches, QUESTIONS, strict=True):
        show(topic, branch.text_iter("answer"))  # all three run; they are shown in turn
    branches.join()

    notes = "\n".join(f"{k}: {v}" for k, v in zip(QUESTIONS, s["answer"], strict=True))
    s += esp.user(f"Notes:\n{notes}\nWhat does the handbook tell us to do?")
    s += esp.assistant("We should " + esp.select("verdict", VERDICTS))
    show("verdict", s.text_iter("verdict"))
    incident: Incident = s["incident"]
    return incident


def show(title: str, pieces: Iterator[str]) -> None:
    print(f"\n[{title}] ", end="")
    for piece in pieces:
        print(piece, end="", flush=True)


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    start = perf_counter()
    with esp.Runtime("smollm2") as runtime:
        loaded = perf_counter()
        run = review.run(REPORT, backend=runtime)
        seconds = perf_counter() - loaded
        [stats] = runtime.server_info()["internal_states"]
        print(f"\n\nAs a Python object: {run.return_value!r}")
        print(
            f"\n{stats['num_computed_tokens']} tokens computed, "
            f"{stats['num_cached_tokens']} taken from the cache, "
            f"{stats['num_forward_passes']} forward passes, "
            f"{seconds:.1f} s (and {loaded - start:.1f} s to start the processes)"
        )


if __name__ == "__main__":
    main()
