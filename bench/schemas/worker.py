"""The process in which one contender compiles and matches, killed when it takes too long.

    python -m bench.schemas.worker MODULE:CLASS

Reads jobs and writes replies, one JSON object a line: `ready` once, then for each job `compiled`
or `refused`, and after `compiled` which spelling of each instance was accepted. It ends at the
first exception, having said `raised`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import TextIO

from bench.schemas.contenders import Contender, Matcher, Refusal, load
from bench.schemas.spellings import spellings
from bench.schemas.values import Value, read

Reply = dict[str, object]


def accepted_spelling(matcher: Matcher, instance: Value, schema: Value) -> str | None:
    """The first of an instance's spellings that is accepted."""
    return next(filter(matcher.accepts, spellings(instance, schema)), None)


def replies_to(contender: Contender, schema: str, instances: list[str]) -> Iterator[Reply]:
    compiled = contender.compile(schema)
    if isinstance(compiled, Refusal):
        yield {"refused": compiled.reason}
        return
    yield {"compiled": True}
    declared = read(schema)
    texts = [accepted_spelling(compiled, read(text), declared) for text in instances]
    yield {"accepted": texts}


def serve(path: str, jobs: TextIO, replies: TextIO) -> None:
    def say(reply: Reply) -> None:
        print(json.dumps(reply), file=replies, flush=True)

    try:
        contender = load(path)
        say({"ready": True})
        for line in jobs:
            job = json.loads(line)
            for reply in replies_to(contender, job["schema"], job["instances"]):
                say(reply)
    except Exception as error:
        say({"raised": f"{type(error).__name__}: {error}"})
        raise


def main() -> None:
    # What an engine prints goes nowhere near the replies.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.argv[1], sys.stdin, replies)


if __name__ == "__main__":
    main()
