"""What is sent to Ollama's `/api/chat`, and what its lines and refusals mean. Pure.

Source: Ollama's API documentation; `truncate` and `shift` came with 0.12.6, servers before it ignore them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dats_common.adapters.ollama.names import is_remote, missing, refuse_cloud
from dats_common.domain.prompt import Message
from dats_common.errors import (
    ContextTruncatedError,
    LLMConnectionError,
    ModelUnavailableError,
    RAGServiceError,
    ResponseCutError,
)
from dats_common.records import Drafted

CHAT, SHOW, TAGS = "/api/chat", "/api/show", "/api/tags"
LONGEST_RETRY_AFTER_S = 3600.0

_CONTEXT_EXCEEDED = re.compile(r"exceeds? the (?:\w+ )?context", re.IGNORECASE)
_CANNOT_RUN = re.compile(
    r"requires more system memory(?: \([\d.]+ \w+\) than is available \([\d.]+ \w+\))?"
    r"|model runner has unexpectedly stopped|runner process has terminated|out of memory|unable to load model",
    re.IGNORECASE,
)


_ABOUT_THINKING = re.compile(r"\bthink(?:ing)?\b", re.IGNORECASE)


class ThinkRefused(LLMConnectionError):
    """The server does not take `think` for this model, or at all."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a streamed answer.

    Attributes:
        content: what the model wrote; its thoughts, which come beside it, are not in here.
        ended: on the last line what the server counted.
    """

    content: str
    ended: Drafted | None = None


def chat_request(
    model: str, messages: Sequence[Message], *, window_tokens: int, keep_alive_s: int, options: Mapping[str, Any]
) -> dict[str, Any]:
    """The body of a streamed chat. It is never cut to the window: not the prompt before, nor while the answer grows.

    Raises: ModelUnavailableError: a name of Ollama's cloud.
    """
    return {
        **load_request(model, window_tokens=window_tokens, keep_alive_s=keep_alive_s),
        "messages": [asdict(message) for message in messages],
        "stream": True,
        "options": {"num_ctx": window_tokens, **options},
        "truncate": False,
        "shift": False,
        "think": False,
    }


def load_request(model: str, *, window_tokens: int, keep_alive_s: int) -> dict[str, Any]:
    """A chat without messages: it loads the model, with the window that later chats name too.

    Raises: ModelUnavailableError: a name of Ollama's cloud.
    """
    refuse_cloud(model)
    return {
        "model": model,
        "messages": [],
        "stream": False,
        "options": {"num_ctx": window_tokens},
        "keep_alive": keep_alive_s,
    }


def without_thinking(request: dict[str, Any]) -> dict[str, Any]:
    """The same chat for a server that must not be told whether to think."""
    return {name: value for name, value in request.items() if name != "think"}


def read_line(raw: bytes, *, request: dict[str, Any], may_be_short: bool = False) -> Line:
    """One line of the answer to `request`.

    Args:
        may_be_short: only what was counted matters, not whether the answer is whole.

    Raises: LLMConnectionError: it cannot be read, says that the server failed, or that the response was cut;
        ModelUnavailableError: the server cannot run the model, or had another server answer; ContextTruncatedError.
    """
    document, model = read_object(raw), request["model"]
    if "error" in document:
        raise failure(None, str(document["error"]), model=model)
    if is_remote(document):
        raise ModelUnavailableError(f"model {model!r} was answered by another server: the prompt left the house")
    message = document.get("message") or {}
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content or "", str):
        raise _unreadable()
    if document.get("done") is not True:
        return Line(content or "")
    ended = Drafted(model, _count(document, "prompt_eval_count"), _count(document, "eval_count"))
    if not may_be_short:
        _check_ending(document.get("done_reason"), ended, request["options"])
    return Line(content or "", ended)


def read_object(raw: bytes) -> dict[str, Any]:
    """Raises: LLMConnectionError: no JSON object, or text in it that is none."""
    try:
        document = json.loads(raw)
        json.dumps(document, ensure_ascii=False).encode()  # a lone surrogate could not be sent on
    except (ValueError, RecursionError):
        raise _unreadable() from None  # the library's error holds the text
    if not isinstance(document, dict):
        raise _unreadable()
    return document


def failure(status: int | None, said: str, *, model: str | None, retry_after: str | None = None) -> RAGServiceError:
    """What a refusal means; its words may quote the prompt, so only those looked for are repeated.

    Args:
        status: of the HTTP answer; None: it began well, and a later line of it is the refusal.
        model: the one that was asked for; None: the request was about none.
        retry_after: the header, as it came; dates are not read.
    """
    if _CONTEXT_EXCEEDED.search(said):
        return ContextTruncatedError("the prompt does not fit the model's window, says the model server")
    if model and (known := _CANNOT_RUN.search(said)):
        return ModelUnavailableError(f"the model server cannot run model {model!r}: {known.group()}")
    if model and status == 404:
        return missing(model)
    if status == 400 and _ABOUT_THINKING.search(said):
        return ThinkRefused("the model server refuses the field `think`")
    if status is None:
        return LLMConnectionError("the model server broke off with an error")
    error = LLMConnectionError(f"the model server answered {status}" + (": it is busy" if status == 503 else ""))
    if retry_after is not None and retry_after.isdecimal():
        error.retry_after_s = min(float(retry_after), LONGEST_RETRY_AFTER_S)
    return error


def said(body: bytes) -> str:
    """The `error` of a refusal; anything else, such as a proxy's page, as it is."""
    try:
        return str(json.loads(body)["error"])
    except (ValueError, RecursionError, LookupError, TypeError):
        return body.decode(errors="replace")


def _check_ending(reason: object, ended: Drafted, options: Mapping[str, Any]) -> None:
    window_tokens, allowed = options["num_ctx"], options["num_predict"]
    if reason == "length":
        written = "some" if ended.response_tokens is None else ended.response_tokens
        raise ResponseCutError(f"the response was cut at {written} tokens, of {allowed} allowed")
    if reason not in ("stop", None):  # `load` and `unload` end what was no answer
        raise LLMConnectionError("the model server ended without an answer")
    if (ended.prompt_tokens or 0) + (ended.response_tokens or 0) > window_tokens:
        # A server that knows neither `truncate` nor `shift`: its prompt fills the window, or the response outgrew it.
        raise ContextTruncatedError(f"prompt and response together outgrew the window of {window_tokens} tokens")


def _count(document: dict[str, Any], name: str) -> int | None:
    """Ollama leaves a count of zero out."""
    value = document.get(name)
    return value if type(value) is int and value >= 0 else None


def _unreadable() -> LLMConnectionError:
    return LLMConnectionError("the model server sent what cannot be read")
