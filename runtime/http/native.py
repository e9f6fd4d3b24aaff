"""POST /generate: SGLang's native route, whole and streaming."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from ..client import OpenCalls
from ..errors import EspalierError, InvalidRequest
from ..messages import FinishReason
from .arrival import Arrival
from .bodies import parse, read_body
from .errors import body_of, failure_of, raise_if_failed
from .metrics import now
from .native_answers import Answers, Json, StreamedChoice
from .native_calls import Ask, Batch, batch_of, open_batch
from .native_fields import GenerateBody
from .outputs import Item, Outputs
from .responses import DONE, EventStream, JsonResponse, sse, until_disconnect
from .service import Service


def add_native_routes(app: FastAPI, service: Service) -> None:
    """`/generate`."""
    app.add_route("/generate", _NativeRoutes(service).generate, methods=["POST", "PUT"])


class _NativeRoutes:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def generate(self, request: Request) -> Response:
        """One prompt or a batch; see `GenerateBody`.

        An aborted choice is an answer (finish_reason.type "abort"); one that failed is an
        error: of the whole response, or in a stream the last event of that choice.
        """
        arrival = Arrival.of(request)
        data = await read_body(request, self._service.config.max_body_bytes)
        body = parse(data, GenerateBody)
        if not body.stream:
            answer = await until_disconnect(request, self._whole(body, arrival))
            return JsonResponse(answer)
        batch, opened = await until_disconnect(request, self._open(body))
        outputs = arrival.outputs(self._service, opened)
        deltas = bool(body.incremental_streaming_output)
        first = await until_disconnect(request, _first(outputs))
        events = self._events(first, batch, outputs, arrival.at_s, deltas=deltas)
        return EventStream(events, on_close=outputs.close)

    async def _open(self, body: GenerateBody) -> tuple[Batch, OpenCalls]:
        client = self._service.client
        batch = await batch_of(body, client, self._service.config.max_queued_requests)
        return batch, await open_batch(batch, client)

    async def _whole(self, body: GenerateBody, arrival: Arrival) -> Json | list[Json]:
        batch, opened = await self._open(body)
        outputs = arrival.outputs(self._service, opened)
        answers: list[Json] = []
        by_ask = await outputs.collect()
        elapsed_s = now() - arrival.at_s
        for ask, completions in zip(batch.asks, by_ask, strict=True):
            writer = Answers(ask, self._service.client.tokenizer)
            for completion in completions:
                failure = _failure(ask, completion.finish)
                if failure is not None:
                    raise failure
                answers.append(writer.whole(completion, elapsed_s))
        return answers if batch.is_list else answers[0]

    async def _events(
        self, items: list[Item], batch: Batch, outputs: Outputs, started_s: float, *, deltas: bool
    ) -> AsyncGenerator[bytes]:
        writers = [Answers(ask, self._service.client.tokenizer) for ask in batch.asks]
        firsts = batch.first_indices
        choices: dict[int, StreamedChoice] = {}
        try:
            while True:
                events: list[bytes] = []
                for call, chunk in items:
                    index = firsts[call] + chunk.choice
                    if index not in choices:
                        choices[index] = StreamedChoice(writers[call], deltas=deltas)
                    failure = _failure(batch.asks[call], chunk.finish)
                    if failure is None:
                        event = choices[index].event(chunk, now() - started_s)
                    else:
                        event = body_of(failure)
                    if event is not None:
                        events.append(sse({**event, "index": index} if batch.is_list else event))
                if not outputs.num_open:
                    events.append(DONE)
                if events:
                    yield b"".join(events)
                if not outputs.num_open:
                    break
                items = await outputs.next()
        finally:
            outputs.close()


async def _first(outputs: Outputs) -> list[Item]:
    """The first outputs: a stream begins with them, as whoever is refused gets a status."""
    try:
        items = await outputs.next()
        for _, chunk in items:
            if chunk.finish is not None and chunk.finish.retry_after_s is not None:
                raise_if_failed(chunk.finish)
    except BaseException:
        outputs.close()
        raise
    return items


def _failure(ask: Ask, finish: FinishReason | None) -> EspalierError | None:
    """What a failed end means, with the name of the field that the caller is to blame for."""
    failure = None if finish is None else failure_of(finish)
    return ask.in_callers_words(failure) if isinstance(failure, InvalidRequest) else failure
