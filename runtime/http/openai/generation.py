"""One OpenAI request under way: its outputs as a whole answer or as a stream of events.

Knows no fields of requests but those about streams; what it shows of a choice is `choices`'.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from starlette.responses import Response

from ...messages import FinishReason
from ...programs.backend import GenerateChunk
from ..errors import raise_if_failed
from ..outputs import Outputs
from ..responses import DONE, EventStream, JsonResponse, sse
from .choices import ChoiceShape
from .field_names import FieldNames
from .fields import StreamOptions
from .usage import UsageTally

_Item = tuple[int, GenerateChunk]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """`outputs` of `num_prompts` calls of `n` choices each; read once, by `whole` or `stream`."""

    outputs: Outputs
    num_prompts: int
    n: int
    model: str
    shape: ChoiceShape
    tally: UsageTally
    names: FieldNames

    async def whole(self) -> Response:
        """The answer, when all choices have ended. Raises what makes one of them fail."""
        choices: list[dict[str, object]] = []
        for call, completions in enumerate(await self.outputs.collect()):
            for choice, completion in enumerate(completions):
                self._check(completion.finish)
                self.tally.take(call, completion)
                choices.append(self.shape.whole(call * self.n + choice, completion))
        head = self._head(self.shape.whole_object)
        return JsonResponse({**head, "choices": choices, "usage": self.tally.total()})

    async def stream(self, options: StreamOptions) -> Response:
        """The events, once there is a first one: a failure before it is raised here."""
        try:
            first = await self.outputs.next()
            for _, chunk in first:
                self._check(chunk.finish)
        except BaseException:
            self.outputs.close()
            raise
        return EventStream(self._events(first, options), self.outputs.close)

    async def _events(self, items: list[_Item], options: StreamOptions) -> AsyncGenerator[bytes]:
        head = self._head(self.shape.chunk_object)
        openings = map(self.shape.opening, range(self.num_prompts * self.n))
        events = [self._event(head, choice, options) for choice in openings if choice is not None]
        try:
            while True:
                events += [
                    self._event(head, choice, options)
                    for item in items
                    if (choice := self._taken(item)) is not None
                ]
                if not self.outputs.num_open:
                    break
                if events:
                    yield b"".join(events)
                items, events = await self.outputs.next(), []
        finally:
            self.outputs.close()
        if options.include_usage:
            events.append(sse({**head, "choices": [], "usage": self.tally.total()}))
        yield b"".join([*events, DONE])

    def _taken(self, item: _Item) -> dict[str, object] | None:
        call, chunk = item
        self._check(chunk.finish)
        self.tally.take(call, chunk)
        return self.shape.delta(call * self.n + chunk.choice, chunk)

    def _event(
        self,
        head: dict[str, object],
        choice: dict[str, object],
        options: StreamOptions,
    ) -> bytes:
        event = {**head, "choices": [choice]}
        if options.include_usage or options.continuous_usage_stats:
            event["usage"] = self.tally.so_far() if options.continuous_usage_stats else None
        return sse(event)

    def _check(self, finish: FinishReason | None) -> None:
        if finish is not None:
            # After it was accepted, only its constraint can still be the request's own fault.
            with self.names.told(self.names.constraint):
                raise_if_failed(finish)

    def _head(self, kind: str) -> dict[str, object]:
        return {
            "id": f"{self.shape.id_prefix}{uuid.uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": self.model,
        }
