"""What the server says of itself: health, the model, its configuration, metrics."""

from __future__ import annotations

import time
from dataclasses import asdict
from importlib.metadata import version

from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from ..errors import Unavailable
from ..scheduler.stats import SchedulerStats
from .errors import error_response
from .responses import JsonResponse, until_disconnect
from .service import Service

_STATS_TIMEOUT_S = 1.0


def add_info_routes(app: FastAPI, service: Service) -> None:
    """`/`, `/health`, `/ready`, `/model_info`, `/server_info`, `/metrics` and their other names."""
    routes = _InfoRoutes(service)
    for path, endpoint in {
        "/": routes.root,
        "/health": routes.health,
        "/health_generate": routes.health,
        "/ready": routes.ready,
        "/model_info": routes.model_info,
        "/get_model_info": routes.model_info,
        "/server_info": routes.server_info,
        "/get_server_info": routes.server_info,
        "/metrics": routes.metrics,
    }.items():
        app.add_route(path, endpoint, methods=["GET"])


class _InfoRoutes:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._version = version("espalier-lm")

    async def root(self, request: Request) -> Response:
        """Who answers here."""
        return JsonResponse(
            {"name": "espalier", "version": self._version, "model": self._service.model_name}
        )

    async def health(self, request: Request) -> Response:
        """200 while this process answers, so that nobody kills a server that heals itself or
        is busy with a long prefill. Whether requests are taken is `/ready`'s to say."""
        try:
            _ = self._service.client.limits
        except Unavailable as error:
            return JsonResponse({"status": str(error)})
        return JsonResponse({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """200 while new requests are taken; else 503 and why."""
        try:
            _ = self._service.client.limits
        except Unavailable as error:
            return error_response(error)
        return JsonResponse({"status": "ready"})

    async def model_info(self, request: Request) -> Response:
        """The model and its vocabulary."""
        client, path = self._service.client, self._service.model_path
        tokenizer = client.tokenizer
        return JsonResponse(
            {
                "model_path": path,
                "tokenizer_path": path,
                "served_model_name": self._service.model_name,
                "is_generation": True,
                "preferred_sampling_params": None,
                "context_length": client.limits.context_len,
                "vocab_size": tokenizer.vocab_size,
                "bos_token_id": tokenizer.bos_id,
                "eos_token_ids": list(tokenizer.eos_ids),
                "has_chat_template": tokenizer.chat is not None,
            }
        )

    async def server_info(self, request: Request) -> Response:
        """The configuration, but for the API key, and the scheduler's present state."""
        service = self._service
        limits = service.client.limits
        stats = await until_disconnect(request, self._stats())
        config = asdict(service.config)
        del config["api_key"]
        state = {} if stats is None else asdict(stats)
        state.pop("histograms", None)  # those are for /metrics
        return JsonResponse(
            {
                "version": self._version,
                "model_path": service.model_path,
                "served_model_name": service.model_name,
                "context_length": limits.context_len,
                "max_total_num_tokens": limits.pool_tokens,
                "num_open_requests": service.client.num_open,
                "uptime_s": time.time() - service.started_at,
                "config": config,
                "internal_states": [state] if state else [],
            }
        )

    async def metrics(self, request: Request) -> Response:
        """Prometheus's text form; without the scheduler's part while it does not answer."""
        stats = await until_disconnect(request, self._stats())
        text = self._service.metrics.render(stats)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    async def _stats(self) -> SchedulerStats | None:
        try:
            return await self._service.client.stats(_STATS_TIMEOUT_S)
        except Unavailable:
            return None
