"""Routes around the tokenizer: text, messages and pieces to ids, ids to text, role markers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from ..errors import InvalidRequest
from ..programs.backend import TextPiece
from .bodies import parse, read_body
from .responses import JsonResponse, until_disconnect
from .service import Service

_SOURCES = ("prompt", "text", "messages", "pieces")
_MAX_ESCAPED_LEN = 6  # of one character in JSON: \u00e9


class PieceFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stretch of text; control tokens are recognised in it only if `control`."""

    text: str
    control: bool = False


class TokenizeBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of four: `prompt` or `text` (one or a list), `messages`, or our `pieces`.

    Control tokens are recognised in `prompt` and `text`, as in `/generate`; with
    `add_special_tokens`, which is the default, the model's BOS is put in front of them.
    """

    model: str | None = None
    prompt: str | list[str] | None = None
    text: str | list[str] | None = None
    messages: list[dict[str, object]] | None = None
    pieces: list[PieceFields] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None


class DetokenizeBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One list of ids or several. `skip_special_tokens` (the default) leaves out controls."""

    tokens: list[int | list[int]]
    model: str | None = None
    skip_special_tokens: bool | None = None


class RoleMarkersBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The roles of all messages up to the one whose markers are asked for."""

    roles: list[str]


def add_token_routes(app: FastAPI, service: Service) -> None:
    """`/tokenize`, `/detokenize`, `/role_markers`."""
    routes = _TokenRoutes(service)
    for prefix in ("", "/v1"):
        app.add_route(f"{prefix}/tokenize", routes.tokenize, methods=["POST"])
        app.add_route(f"{prefix}/detokenize", routes.detokenize, methods=["POST"])
    app.add_route("/role_markers", routes.role_markers, methods=["POST"])


class _TokenRoutes:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._client = service.client

    async def tokenize(self, request: Request) -> Response:
        """Ids and their number; lists of both for a list of texts."""
        data = await read_body(request, self._service.config.max_body_bytes)
        body = parse(data, TokenizeBody)
        self._service.check_model(body.model)
        found = await until_disconnect(request, self._tokenize(body, len(data)))
        count = [len(cast("list[int]", ids)) for ids in found] if _is_nested(found) else len(found)
        max_model_len = self._client.limits.context_len
        return JsonResponse({"tokens": found, "count": count, "max_model_len": max_model_len})

    async def detokenize(self, request: Request) -> Response:
        """The text of ids; a list of texts for a list of lists."""
        data = await read_body(request, self._service.config.max_body_bytes)
        body = parse(data, DetokenizeBody)
        self._service.check_model(body.model)
        self._check_counts(body.tokens)
        plain = body.skip_special_tokens is not False
        text = await self._client.run_in_worker(lambda: self._texts(body.tokens, plain))
        return JsonResponse({"text": text})

    async def role_markers(self, request: Request) -> Response:
        """The chat template's text before and after the last message."""
        data = await read_body(request, self._service.config.max_body_bytes)
        body = parse(data, RoleMarkersBody)
        tokenizer = self._client.tokenizer
        self._check_count(len(body.roles), self._client.limits.context_len, "roles")
        self._check_fits(sum(map(len, body.roles)), "roles")
        found = await self._client.run_in_worker(lambda: tokenizer.role_markers(body.roles))
        return JsonResponse({"open": found.open, "close": found.close})

    async def _tokenize(self, body: TokenizeBody, body_len: int) -> list[int] | list[list[int]]:
        asked = [name for name in _SOURCES if getattr(body, name) is not None]
        if len(asked) != 1:
            param = asked[1] if asked else _SOURCES[0]
            raise InvalidRequest(f"exactly one of {', '.join(_SOURCES)} is needed", param=param)
        if body.messages is not None:
            return await self._chat(body, body.messages, body_len)
        if body.pieces is not None:
            return await self._encode([TextPiece(p.text, p.control) for p in body.pieces], "pieces")
        texts = (body.text if body.prompt is None else body.prompt) or ""
        bos_id = self._client.tokenizer.bos_id
        bos = [] if bos_id is None or body.add_special_tokens is False else [bos_id]
        if isinstance(texts, str):
            return bos + await self._encode([TextPiece(texts, control=True)], asked[0])
        self._check_count(len(texts), self._service.config.max_queued_requests, asked[0])
        return [
            bos + await self._encode([TextPiece(text, control=True)], f"{asked[0]}[{i}]")
            for i, text in enumerate(texts)
        ]

    def _check_fits(self, num_chars: int, param: str) -> None:
        context_len = self._client.limits.context_len
        if num_chars > context_len * self._client.tokenizer.max_token_bytes:
            raise InvalidRequest(
                f"the {param} are longer than the model's context length of {context_len} "
                f"tokens, whatever their tokens",
                param=param,
            )

    def _check_counts(self, tokens: list[int | list[int]]) -> None:
        """What nobody needs at once would hold up everybody else."""
        longest = self._client.limits.context_len
        if not _is_nested(tokens):
            self._check_count(len(tokens), longest, "tokens")
            return
        self._check_count(len(tokens), self._service.config.max_queued_requests, "tokens")
        for i, ids in enumerate(tokens):
            if isinstance(ids, list):
                self._check_count(len(ids), longest, f"tokens[{i}]")

    def _check_count(self, count: int, most: int, param: str) -> None:
        if count > most:
            raise InvalidRequest(f"{param} has {count} entries, at most {most}", param=param)

    async def _encode(self, pieces: Sequence[TextPiece], param: str) -> list[int]:
        try:
            return await self._client.encode(pieces)
        except InvalidRequest as error:
            raise InvalidRequest(str(error), param=param) from None

    async def _chat(
        self, body: TokenizeBody, messages: list[dict[str, object]], body_len: int
    ) -> list[int]:
        if not messages:
            raise InvalidRequest("messages is empty", param="messages")
        self._check_count(len(messages), self._client.limits.context_len, "messages")
        self._check_fits(body_len // _MAX_ESCAPED_LEN, "messages")
        tokenizer = self._client.tokenizer
        generate = body.add_generation_prompt is not False
        return await self._client.run_in_worker(
            lambda: tokenizer.encode_chat(messages, add_generation_prompt=generate)
        )

    def _texts(self, tokens: list[int | list[int]], plain: bool) -> str | list[str]:
        if not _is_nested(tokens):
            return self._text(cast("list[int]", tokens), "tokens", plain)
        texts: list[str] = []
        for i, ids in enumerate(tokens):
            if isinstance(ids, int):
                raise InvalidRequest("tokens mixes ids and lists of ids", param=f"tokens[{i}]")
            texts.append(self._text(ids, f"tokens[{i}]", plain))
        return texts

    def _text(self, ids: list[int], param: str, plain: bool) -> str:
        tokenizer = self._client.tokenizer
        for i, token_id in enumerate(ids):
            if isinstance(token_id, list) or not 0 <= token_id < tokenizer.vocab_size:
                raise InvalidRequest(
                    f"{param}[{i}] is not an id of the vocabulary, 0 to {tokenizer.vocab_size - 1}",
                    param=f"{param}[{i}]",
                )
        if plain:
            return tokenizer.decode(ids)
        return b"".join(tokenizer.token_bytes[i] for i in ids).decode("utf-8", "replace")


def _is_nested(tokens: Sequence[int | list[int]]) -> bool:
    return bool(tokens) and isinstance(tokens[0], list)
