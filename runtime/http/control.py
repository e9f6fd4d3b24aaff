"""Routes that change what runs: aborting requests, flushing the cache, asking for events."""

from __future__ import annotations

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from ..errors import InvalidRequest
from .bodies import parse, read_body
from .responses import JsonResponse, until_disconnect
from .service import Service


class AbortBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The request with exactly this `rid`, or all of them."""

    rid: str | None = None
    abort_all: bool | None = None


def add_control_routes(app: FastAPI, service: Service) -> None:
    """`/flush_cache`, `/abort_request` and `/kv_events/snapshot`."""
    routes = _ControlRoutes(service)
    app.add_route("/flush_cache", routes.flush_cache, methods=["GET", "POST"])
    app.add_route("/abort_request", routes.abort_request, methods=["POST"])
    app.add_route("/kv_events/snapshot", routes.send_snapshot, methods=["POST"])


class _ControlRoutes:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def flush_cache(self, request: Request) -> Response:
        """Forget every cached token that no request uses."""
        num_tokens = await until_disconnect(request, self._service.client.flush_cache())
        return JsonResponse({"success": True, "num_flushed_tokens": num_tokens})

    async def send_snapshot(self, request: Request) -> Response:
        """Have all that the cache holds published as events; it comes after this answer or
        before it."""
        if self._service.config.kv_events is None:
            raise InvalidRequest("events are published only where --kv-events is set")
        self._service.client.send_snapshot()
        return JsonResponse({"success": True})

    async def abort_request(self, request: Request) -> Response:
        """End requests with an abort; that there is none of that name is no error."""
        data = await read_body(request, self._service.config.max_body_bytes)
        body = parse(data, AbortBody)
        client = self._service.client
        if body.abort_all:
            return JsonResponse({"num_aborted": client.abort_all()})
        if body.rid is None:
            raise InvalidRequest("rid or abort_all is needed", param="rid")
        return JsonResponse({"num_aborted": int(client.abort(body.rid))})
