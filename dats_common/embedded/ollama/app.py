"""Ollama's routes. Every request runs in one task, which is cancelled when its client goes away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dats_common.contracts.strict_json import MAX_BODY_BYTES, parse_object
from dats_common.embedded.ollama.engine import Llama
from dats_common.embedded.ollama.gguf import NotGguf, read_header
from dats_common.embedded.ollama.models import Model, Models
from dats_common.embedded.ollama.protocol import (
    INPUT_TOO_LONG,
    NEVER,
    OLLAMA_VERSION,
    PROMPT_TOO_LONG,
    RUNNER_STOPPED,
    ChatRequest,
    EmbedRequest,
    End,
    GenerateRequest,
    OllamaError,
    Piece,
    ShowRequest,
    completion_body,
    embed_answer,
    joined,
    last_answer,
    loaded_answer,
    piece_answer,
    read_event,
    read_request,
    require_supported,
    unknown_model,
    without_oldest,
)
from dats_common.embedded.ollama.protocol import Message as ChatMessage
from dats_common.embedded.ollama.runner import MOST_BATCH_TOKENS
from dats_common.errors import InvalidInput

BODY_TIMEOUT_S = 30.0
_JSON = "application/json"
_NDJSON = [(b"content-type", b"application/x-ndjson")]

Clock = Callable[[], int]
"""Nanoseconds of a clock that never goes back."""


def build_app(models: Models, *, clock: Clock = time.perf_counter_ns) -> Starlette:
    """The facade's routes over these models."""
    routes = _Routes(models, clock)
    return Starlette(
        routes=[
            Route("/", routes.root),
            Route("/api/version", routes.version),
            Route("/api/tags", routes.tags),
            Route("/api/ps", routes.ps),
            Route("/api/show", routes.show, methods=["POST"]),
            Route("/api/chat", routes.chat, methods=["POST"]),
            Route("/api/generate", routes.generate, methods=["POST"]),
            Route("/api/embed", routes.embed, methods=["POST"]),
        ],
        middleware=[Middleware(_EndsWithItsClient)],
        exception_handlers={OllamaError: _told, InvalidInput: _told},
    )


class _Routes:
    def __init__(self, models: Models, clock: Clock) -> None:
        self._models = models
        self._clock = clock

    async def root(self, _: Request) -> PlainTextResponse:
        return PlainTextResponse("Ollama is running")

    async def version(self, _: Request) -> JSONResponse:
        return JSONResponse({"version": OLLAMA_VERSION})

    async def tags(self, _: Request) -> JSONResponse:
        listed = [
            {**_identity(model), "modified_at": _modified_at(model), "size": model.path.stat().st_size}
            for model in self._models
        ]
        return JSONResponse({"models": listed})

    async def ps(self, _: Request) -> JSONResponse:
        running = [
            {
                **_identity(model),
                "size": model.path.stat().st_size,
                "size_vram": 0,
                "expires_at": NEVER,
                "context_length": model.window_tokens,
            }
            for model in self._models
            if model.is_loaded
        ]
        return JSONResponse({"models": running})

    async def show(self, request: Request) -> Response:
        asked = read_request(ShowRequest, parse_object(await request.body()))
        if not (name := asked.model or asked.name):
            raise OllamaError(400, "model is required")
        model = self._models.named(name)
        # With its arrays it is megabytes, which are read and written while others are answered.
        return Response(await asyncio.to_thread(_shown, model, asked.verbose or False), media_type=_JSON)

    async def chat(self, request: Request) -> ASGIApp:
        asked = read_request(ChatRequest, parse_object(await request.body()))
        if not asked.model:
            raise OllamaError(400, "model is required")
        return await self._answer(asked)

    async def generate(self, request: Request) -> ASGIApp:
        asked = read_request(GenerateRequest, parse_object(await request.body()))
        if not asked.model:
            raise unknown_model(asked.model)
        return await self._answer(asked)

    async def embed(self, request: Request) -> JSONResponse:
        asked = read_request(EmbedRequest, parse_object(await request.body()))
        model = self._models.named(asked.model)
        started = self._clock()
        async with model.turn():
            llama = await model.load()
            loaded = self._clock()
            texts = [await _fitting_tokens(llama, text, model, asked) for text in asked.texts]
            vectors = await llama.embed(texts) if texts else []
            if asked.unloads:
                await model.unload()
        return JSONResponse(
            embed_answer(
                asked,
                vectors,
                tokens=sum(map(len, texts)),
                total_ns=self._clock() - started,
                load_ns=loaded - started,
            )
        )

    async def _answer(self, asked: ChatRequest | GenerateRequest) -> ASGIApp:
        model = self._models.named(asked.model)
        require_supported(asked)
        lines = self._lines(asked, model)
        if asked.streams and asked.conversation:
            return _Stream(lines)
        async with contextlib.aclosing(lines):
            return JSONResponse(joined(asked, [line async for line in lines]))

    async def _lines(self, asked: ChatRequest | GenerateRequest, model: Model) -> AsyncGenerator[dict[str, Any]]:
        """The answer as lines of a stream; closing it early stops the model. Raises: OllamaError."""
        started = self._clock()
        async with model.turn():
            if not asked.conversation:
                await (model.unload() if asked.unloads else model.load())
                yield loaded_answer(asked, created_at=_now())
                return
            llama = await model.load()
            loaded = self._clock()
            body = await _fitting_body(llama, asked, model)
            end: End | None = None
            async with contextlib.aclosing(llama.complete(body)) as events:
                async for event in events:
                    said = read_event(event)
                    if isinstance(said, Piece):
                        yield piece_answer(asked, said, created_at=_now())
                    end = said if isinstance(said, End) else end
            if end is None:
                raise OllamaError(500, RUNNER_STOPPED)
            if asked.unloads:
                await model.unload()
            total_ns, load_ns = self._clock() - started, loaded - started
            yield last_answer(asked, end, created_at=_now(), total_ns=total_ns, load_ns=load_ns)


async def _fitting_body(llama: Llama, asked: ChatRequest | GenerateRequest, model: Model) -> dict[str, Any]:
    """What the engine is sent, as much of it as fits the window. Raises: OllamaError: 400: it does not fit."""
    window = min(asked.options.num_ctx or model.window_tokens, model.window_tokens)
    messages: tuple[ChatMessage, ...] = asked.conversation
    while (prompt_tokens := await llama.count(messages)) >= window:
        if not asked.may_cut:
            raise OllamaError(400, INPUT_TOO_LONG)
        fewer = without_oldest(messages)
        if fewer is None:
            raise OllamaError(400, PROMPT_TOO_LONG)
        messages = fewer
    return completion_body(asked, messages, room_tokens=window - prompt_tokens)


async def _fitting_tokens(llama: Llama, text: str, model: Model, asked: EmbedRequest) -> list[int]:
    """A text's tokens, as many as fit. Raises: OllamaError: 400: they do not fit, and may not be cut."""
    limit = min(asked.options.num_ctx or model.window_tokens, model.window_tokens, MOST_BATCH_TOKENS)
    tokens = await llama.tokenize(text)
    if len(tokens) > limit and not asked.may_cut:
        raise OllamaError(400, INPUT_TOO_LONG)
    return tokens[:limit]


# --------------------------------------------------------------------------------------------------------- showing


def _shown(model: Model, verbose: bool) -> bytes:
    """Arrays, such as the vocabulary, are null unless they are asked for. Raises: OllamaError: the file has gone."""
    try:
        header = read_header(model.path, arrays=True) if verbose else model.header
    except (OSError, NotGguf) as error:
        raise OllamaError(500, f"cannot read the model's file any more: {error}") from error
    unlisted = ("general.name", "tokenizer.chat_template")
    info = {key: value for key, value in header.metadata.items() if key not in unlisted}
    shown = {
        "modelfile": "",
        "parameters": "",
        "template": header.metadata.get("tokenizer.chat_template", ""),
        "details": _details(model),
        "model_info": {**info, "general.parameter_count": header.parameters},
        "capabilities": ["completion"],
        "modified_at": _modified_at(model),
    }
    return json.dumps(shown).encode()


def _identity(model: Model) -> dict[str, Any]:
    return {"name": model.name, "model": model.name, "digest": model.header.digest, "details": _details(model)}


def _details(model: Model) -> dict[str, Any]:
    family = model.header.architecture
    return {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family],
        "parameter_size": _in_words(model.header.parameters),
        "quantization_level": model.header.quantisation,
    }


def _in_words(number: int) -> str:
    """Source: Ollama, format.HumanNumber."""
    for unit, size, form in (("B", 10**9, ".1f"), ("M", 10**6, ".2f"), ("K", 10**3, ".0f")):
        if number >= size:
            return f"{number / size:{form}}{unit}"
    return str(number)


def _modified_at(model: Model) -> str:
    return _stamp(datetime.fromtimestamp(model.path.stat().st_mtime, UTC))


def _now() -> str:
    return _stamp(datetime.now(UTC))


def _stamp(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


# ------------------------------------------------------------------------------------------------------------ HTTP


def _told(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": str(error)}, error.status if isinstance(error, OllamaError) else 400)


class _Stream:
    """A line of JSON for each piece. What fails before the first has a status; later it is the last line."""

    def __init__(self, lines: AsyncGenerator[dict[str, Any]]) -> None:
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with contextlib.aclosing(self._lines) as lines:
            line = await anext(lines)
            await send({"type": "http.response.start", "status": 200, "headers": _NDJSON})
            try:
                while True:
                    await send(_body(line, more=True))
                    line = await anext(lines)
            except StopAsyncIteration:
                await send({"type": "http.response.body", "body": b""})
            except OllamaError as error:
                await send(_body({"error": str(error)}, more=False))


def _body(line: dict[str, Any], *, more: bool) -> Message:
    return {"type": "http.response.body", "body": json.dumps(line).encode() + b"\n", "more_body": more}


class _EndsWithItsClient:
    """Reads the body, and cancels whatever the request has led to once its client is gone."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                body = await _read(receive)
        except TimeoutError:
            await JSONResponse({"error": f"no request body within {BODY_TIMEOUT_S:g} s"}, 408)(scope, receive, send)
            return
        if len(body) > MAX_BODY_BYTES:
            await JSONResponse({"error": f"the request body has over {MAX_BODY_BYTES} bytes"}, 413)(
                scope, receive, send
            )
            return

        async def answer() -> None:
            await self._app(scope, _replayed(body), send)

        async def watch() -> None:
            await receive()  # Nothing but the client's end can arrive after the body.

        work = asyncio.create_task(answer(), name="ollama-request")
        gone = asyncio.create_task(watch(), name="ollama-client-watch")
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (work, gone):  # One that has ended does not mind.
                task.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)
        if not work.cancelled() and (error := work.exception()):
            raise error


async def _read(receive: Receive) -> bytes:
    """The body, or enough of it to tell that it is too large, or that the client has gone."""
    body = b""
    while len(body) <= MAX_BODY_BYTES:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body", False):
            break
    return body


def _replayed(body: bytes) -> Receive:
    messages: list[Message] = [{"type": "http.request", "body": body}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()  # The watch is told of the client's end, and cancels this.
        raise AssertionError("nobody sets it")

    return receive
