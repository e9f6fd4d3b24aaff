"""The application: all routes, and the one place where exceptions become responses."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ..errors import EspalierError
from .api_key import RequireApiKey
from .control import add_control_routes
from .errors import error_body, error_response, kind_of_status
from .info import add_info_routes
from .native import add_native_routes
from .openai.routes import add_openai_routes
from .responses import ClientGone, DirectSend, JsonResponse
from .service import Service
from .tokens import add_token_routes

_CLIENT_CLOSED_REQUEST = 499  # nginx's; nobody is there to read it


def create_app(service: Service) -> FastAPI:
    """The ASGI application that serves `service`. No cross-origin requests are let in."""
    app = FastAPI(
        title="Espalier",
        openapi_url=None,
        exception_handlers={
            EspalierError: _refused,
            ClientGone: _gone,
            HTTPException: _not_routed,
            Exception: _failed,
        },
    )
    add_native_routes(app, service)  # routes are tried in this order
    add_openai_routes(app, service)
    add_token_routes(app, service)
    add_control_routes(app, service)
    add_info_routes(app, service)
    app.add_middleware(DirectSend)
    if service.config.api_key is not None:
        app.add_middleware(RequireApiKey, api_key=service.config.api_key)
    return app


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, EspalierError)
    return error_response(error)


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=_CLIENT_CLOSED_REQUEST)


async def _not_routed(request: Request, error: Exception) -> Response:
    """No such path, or not this method on it."""
    assert isinstance(error, HTTPException)
    status = error.status_code
    message = f"{error.detail}: {request.method} {request.url.path}"
    body = error_body(message, kind=kind_of_status(status), code=status)
    return JsonResponse(body, status_code=status, headers=error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    """A fault of ours: the framework raises it again, and the server logs its traceback."""
    body = error_body("internal server error", kind=kind_of_status(500), code=500)
    return JsonResponse(body, status_code=500)
