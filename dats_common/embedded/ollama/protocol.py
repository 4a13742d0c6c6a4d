"""Ollama's requests as llama.cpp's server wants them, and its answers as Ollama gives them. No I/O, no clock.

Source of every shape, default and message: Ollama's server/routes.go, llm/llama_server.go and api/types.go, as of the
version below, which runs llama.cpp's server too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

OLLAMA_VERSION = "0.32.15"
"""The server whose protocol this speaks; clients compare it with what they need."""

NEVER = "9999-12-31T23:59:59Z"
"""When a model is unloaded by itself."""

INPUT_TOO_LONG = "the input length exceeds the context length"
PROMPT_TOO_LONG = (
    "the prompt is longer than the context length currently available to the model; shorten the prompt, adjust the "
    "context length in settings, or use a model with a longer context length"
)
BUSY = "server busy, please try again.  maximum pending requests exceeded"
RUNNER_STOPPED = (
    "model runner has unexpectedly stopped, this may be due to resource limitations or an internal error, "
    "check ollama server logs for details"
)


class OllamaError(Exception):
    """What is answered instead: a status and `{"error": message}`."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def canonical(name: str) -> str:
    """A model's name as names are compared: small letters, `:latest` where there is no tag."""
    name = name.strip().lower()
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def unknown_model(name: str) -> OllamaError:
    """The model is not one of ours."""
    return OllamaError(404, f"model '{name}' not found")


# -------------------------------------------------------------------------------------------------------- requests

_ZERO_DURATION = re.compile(r"0+(\.0+)?(ns|us|µs|ms|s|m|h)?")

Tokens = Annotated[int, Field(ge=-(2**31), lt=2**31)]
Part = Annotated[float, Field(allow_inf_nan=False)]


def _or_default(value: object, fallback: object) -> object:
    return fallback if value is None else value


class _Request(BaseModel):
    """Fields that are not known are ignored, as Ollama ignores them."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class Options(_Request):
    """How to write. Those that only Ollama's own engine knows are ignored."""

    temperature: Part | None = None
    top_k: Tokens | None = None
    top_p: Part | None = None
    min_p: Part | None = None
    repeat_penalty: Part | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: list[str] | None = None
    num_predict: Tokens | None = None
    num_ctx: Tokens | None = None

    def sampling(self) -> dict[str, Any]:
        """In llama.cpp's names; Ollama's defaults for what was not said."""
        asked = self.model_dump(include=set(_SAMPLING), exclude_none=True)
        return {**_SAMPLING, **asked, "seed": asked.get("seed", -1) % 2**32}


_SAMPLING: Mapping[str, Any] = {
    "temperature": 0.8,
    "top_k": 40,
    "top_p": 0.9,
    "min_p": 0.0,
    "repeat_penalty": 1.1,
    "seed": -1,  # A new one for every answer.
    "stop": [],
}


class Message(_Request):
    """One message of a conversation; text only."""

    role: str
    content: Annotated[str, BeforeValidator(lambda value: _or_default(value, ""))] = ""
    images: list[Any] | None = None


class _ModelRequest(_Request):
    model: Annotated[str, BeforeValidator(lambda value: _or_default(value, ""))] = ""
    keep_alive: int | float | str | None = None
    options: Annotated[Options, BeforeValidator(lambda value: _or_default(value, {}))] = Options()
    truncate: bool | None = None

    @property
    def unloads(self) -> bool:
        """Whether the model is to leave memory once this is answered."""
        if isinstance(self.keep_alive, str):
            return _ZERO_DURATION.fullmatch(self.keep_alive.strip()) is not None
        return self.keep_alive == 0

    @property
    def may_cut(self) -> bool:
        """Whether what does not fit may be left out; Ollama's default, and silent."""
        return self.truncate is not False


class _Generation(_ModelRequest):
    format: Literal["json", ""] | dict[str, Any] | None = None
    stream: bool | None = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @property
    def streams(self) -> bool:
        """Whether the answer is sent piece by piece."""
        return self.stream is not False

    @property
    def conversation(self) -> tuple[Message, ...]:
        """What the model is to go on from; empty: it is only to be loaded or unloaded."""
        raise NotImplementedError

    @property
    def open_ended(self) -> bool:
        """Whether only the model or the window ends the answer."""
        return (self.options.num_predict if self.options.num_predict is not None else -1) < 0

    @property
    def unsupported(self) -> str | None:
        """What is asked that no model here can do."""
        if self.think:
            return "thinking"
        return "images" if any(message.images for message in self.conversation) else None

    def told(self, text: str, thinking: str = "") -> dict[str, Any]:
        """A piece of the answer, in the fields where this route has it."""
        raise NotImplementedError


class ChatRequest(_Generation):
    """`POST /api/chat`."""

    messages: list[Message] | None = None
    tools: list[Any] | None = None

    @property
    def conversation(self) -> tuple[Message, ...]:
        return tuple(self.messages or ())

    @property
    def unsupported(self) -> str | None:
        return "tools" if self.tools else super().unsupported

    def told(self, text: str, thinking: str = "") -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, **_if_any(thinking=thinking)}}


class GenerateRequest(_Generation):
    """`POST /api/generate`: a prompt that the model's own template makes a conversation of."""

    prompt: Annotated[str, BeforeValidator(lambda value: _or_default(value, ""))] = ""
    system: str | None = None
    raw: bool | None = None
    suffix: str | None = None
    template: str | None = None
    context: list[int] | None = None
    images: list[Any] | None = None

    @property
    def conversation(self) -> tuple[Message, ...]:
        if not self.prompt:
            return ()
        system = [Message(role="system", content=self.system)] if self.system else []
        return (*system, Message(role="user", content=self.prompt, images=self.images))

    @property
    def open_ended(self) -> bool:
        # Ollama leaves a 0 out of what it sends to its engine here, and nothing said is no limit.
        return super().open_ended or self.options.num_predict == 0

    @property
    def unsupported(self) -> str | None:
        for name in ("raw", "suffix", "template", "context"):
            if getattr(self, name):
                return name
        return super().unsupported

    def told(self, text: str, thinking: str = "") -> dict[str, Any]:
        return {"response": text, **_if_any(thinking=thinking)}


class EmbedRequest(_ModelRequest):
    """`POST /api/embed`."""

    input: str | list[str] | None = None
    dimensions: Annotated[int, Field(ge=0)] | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """In their order."""
        if isinstance(self.input, str):
            return (self.input,) if self.input else ()
        return tuple(self.input or ())


class ShowRequest(_Request):
    """`POST /api/show`."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None


R = TypeVar("R", bound=_Request)


def read_request(kind: type[R], body: Mapping[str, Any]) -> R:
    """The body as a request of this kind. Raises: OllamaError: 400, with the first thing that is wrong."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(step) for step in problem["loc"])
        raise OllamaError(400, f"{place}: {problem['msg']}") from None


def require_supported(request: ChatRequest | GenerateRequest) -> None:
    """Raises: OllamaError: 400, in Ollama's words for a model that cannot."""
    if missing := request.unsupported:
        raise OllamaError(400, f'"{request.model}" does not support {missing}')


# -------------------------------------------------------------------------------------------- to llama.cpp's server


def template_body(messages: Sequence[Message]) -> dict[str, Any]:
    """What decides how the prompt reads, and so how many tokens it has."""
    return {
        "messages": [{"role": message.role, "content": message.content} for message in messages],
        "chat_template_kwargs": {"enable_thinking": False},
    }


def completion_body(
    request: ChatRequest | GenerateRequest, messages: Sequence[Message], *, room_tokens: int
) -> dict[str, Any]:
    """The body of `/v1/chat/completions`; its answer ends where the window does, `room_tokens` after the prompt."""
    asked = request.options.num_predict
    limit = room_tokens if request.open_ended or asked is None else min(asked, room_tokens)
    body = {
        **template_body(messages),
        **request.options.sampling(),
        "n_predict": limit,
        "stream": True,
        "cache_prompt": True,
    }
    if request.logprobs:
        body |= {"logprobs": True, "top_logprobs": max(request.top_logprobs or 0, 1)}
    if request.format == "json":
        body["response_format"] = {"type": "json_object"}
    elif request.format:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "schema", "schema": request.format}}
    return body


def without_oldest(messages: Sequence[Message]) -> tuple[Message, ...] | None:
    """One message fewer, as Ollama cuts: never the system's, never the last. None: there is no other."""
    for position, message in enumerate(messages[:-1]):
        if message.role != "system":
            return (*messages[:position], *messages[position + 1 :])
    return None


# ------------------------------------------------------------------------------------------ from llama.cpp's server


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of the answer's text, usually one token."""

    text: str
    thinking: str
    logprobs: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class End:
    """Why it ended and what it took.

    Attributes:
        prompt_tokens: of the whole prompt, computed or remembered from the request before.
    """

    reason: Literal["stop", "length"]
    prompt_tokens: int
    prompt_ms: float
    tokens: int
    ms: float


def read_event(event: Mapping[str, Any]) -> Piece | End | None:
    """One event of the stream; None: it says nothing. Raises: OllamaError: the server says that it failed."""
    if "error" in event:
        raise refusal(500, event)
    if not (choices := event.get("choices")):
        return None
    choice = choices[0]
    if reason := choice.get("finish_reason"):
        timings = event.get("timings", {})
        return End(
            reason="length" if reason == "length" else "stop",
            prompt_tokens=timings.get("cache_n", 0) + timings.get("prompt_n", 0),
            prompt_ms=timings.get("prompt_ms", 0.0),
            tokens=timings.get("predicted_n", 0),
            ms=timings.get("predicted_ms", 0.0),
        )
    delta = choice.get("delta", {})
    text, thinking = delta.get("content") or "", delta.get("reasoning_content") or ""
    logprobs = tuple((choice.get("logprobs") or {}).get("content") or ())
    return Piece(text, thinking, logprobs) if text or thinking or logprobs else None


def refusal(status: int, body: Mapping[str, Any]) -> OllamaError:
    """What llama.cpp's server refuses or fails at, in its words."""
    error = body.get("error")
    message = error.get("message") if isinstance(error, Mapping) else error
    return OllamaError(status, str(message or "unknown error"))


# --------------------------------------------------------------------------------------------------------- answers


def piece_answer(request: ChatRequest | GenerateRequest, piece: Piece, *, created_at: str) -> dict[str, Any]:
    """A line of a stream before the last."""
    return {
        "model": request.model,
        "created_at": created_at,
        **request.told(piece.text, piece.thinking),
        "done": False,
        **_if_any(logprobs=[_logprob(one, top=request.top_logprobs or 0) for one in piece.logprobs]),
    }


def last_answer(
    request: ChatRequest | GenerateRequest, end: End, *, created_at: str, total_ns: int, load_ns: int
) -> dict[str, Any]:
    """The line that ends a stream."""
    return {
        "model": request.model,
        "created_at": created_at,
        **request.told(""),
        "done": True,
        "done_reason": end.reason,
        "total_duration": total_ns,
        "load_duration": load_ns,
        "prompt_eval_count": end.prompt_tokens,
        "prompt_eval_duration": int(end.prompt_ms * 1e6),
        "eval_count": end.tokens,
        "eval_duration": int(end.ms * 1e6),
    }


def joined(request: ChatRequest | GenerateRequest, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A whole stream as the one answer of `stream: false`."""
    parts = [line.get("message", line) for line in lines]
    text = "".join(part.get("content", part.get("response", "")) for part in parts)
    thinking = "".join(part.get("thinking", "") for part in parts)
    logprobs = [one for line in lines for one in line.get("logprobs", ())]
    return {**lines[-1], **request.told(text, thinking), **_if_any(logprobs=logprobs)}


def loaded_answer(request: ChatRequest | GenerateRequest, *, created_at: str) -> dict[str, Any]:
    """To a request without a prompt."""
    reason = "unload" if request.unloads else "load"
    return {
        "model": request.model,
        "created_at": created_at,
        **request.told(""),
        "done": True,
        "done_reason": reason,
    }


def embed_answer(
    request: EmbedRequest, vectors: Sequence[Sequence[float]], *, tokens: int, total_ns: int, load_ns: int
) -> dict[str, Any]:
    """Unit vectors, cut to the first `dimensions` numbers where that is asked."""
    return {
        "model": request.model,
        "embeddings": [_unit(vector[: request.dimensions or None]) for vector in vectors],
        "total_duration": total_ns,
        "load_duration": load_ns,
        "prompt_eval_count": tokens,
    }


def _unit(vector: Sequence[float]) -> list[float]:
    length = max(math.sqrt(math.fsum(number * number for number in vector)), 1e-12)  # Source: routes.go, normalize.
    return [number / length for number in vector]


def _if_any(**fields: Any) -> dict[str, Any]:
    """Ollama leaves empty fields out."""
    return {name: value for name, value in fields.items() if value}


def _logprob(one: Mapping[str, Any], *, top: int) -> dict[str, Any]:
    told = {name: one[name] for name in ("token", "logprob", "bytes") if name in one}
    if top:
        told["top_logprobs"] = [_logprob(other, top=0) for other in one.get("top_logprobs", ())[:top]]
    return told
