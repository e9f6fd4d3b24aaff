"""OpenAI's routes: models, completions and chat completions. Reads bodies, decides nothing."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from ..arrival import Arrival
from ..bodies import parse, read_body
from ..responses import JsonResponse, until_disconnect
from ..service import Service
from .fields import ChatBody, CompletionBody, StreamOptions
from .submitting import submit_chat, submit_completion


def add_openai_routes(app: FastAPI, service: Service) -> None:
    """Let `app` serve `service` under /v1."""

    async def models(request: Request) -> Response:
        return JsonResponse({"object": "list", "data": [_model(service)]})

    async def model(request: Request) -> Response:
        service.check_model(request.path_params["name"])
        return JsonResponse(_model(service))

    async def completions(request: Request) -> Response:
        return await _generated(request, service, CompletionBody)

    async def chat_completions(request: Request) -> Response:
        return await _generated(request, service, ChatBody)

    app.add_route("/v1/models", models, methods=["GET"])
    app.add_route("/v1/models/{name:path}", model, methods=["GET"])
    app.add_route("/v1/completions", completions, methods=["POST"])
    app.add_route("/v1/chat/completions", chat_completions, methods=["POST"])


async def _generated(
    request: Request, service: Service, kind: type[ChatBody] | type[CompletionBody]
) -> Response:
    arrival = Arrival.of(request)
    body = parse(await read_body(request, service.config.max_body_bytes), kind)
    service.check_model(body.model)
    return await until_disconnect(request, _answer(service, body, arrival))


async def _answer(service: Service, body: ChatBody | CompletionBody, arrival: Arrival) -> Response:
    if isinstance(body, ChatBody):
        generation = await submit_chat(service, body, arrival)
    else:
        generation = await submit_completion(service, body, arrival)
    if body.stream:
        return await generation.stream(body.stream_options or StreamOptions())
    return await generation.whole()


def _model(service: Service) -> dict[str, object]:
    return {
        "id": service.model_name,
        "object": "model",
        "created": int(service.started_at),
        "owned_by": "espalier",
        "max_model_len": service.client.limits.context_len,
    }
