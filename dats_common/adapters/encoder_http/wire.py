"""What is sent for vectors, in two protocols, and what answers and refusals mean. Pure.

Source: Ollama's API documentation (`/api/embed`, `/api/show`); OpenAI's API reference, "Create embeddings".
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dats_common.errors import ConfigurationError, EncoderUnavailable

LONGEST_RETRY_AFTER_S = 3600.0

KEY = "MODEL_GATEWAY_API_KEY"

_TOO_LONG = re.compile(
    r"context.(?:length|window|size)|too (?:long|large to process|many)|max(?:imum)?.{0,20}tokens|less than \d+ tokens"
    r"|allowed batch size",
    re.IGNORECASE,
)
"""As Ollama, OpenAI, vLLM, llama.cpp's server and Text Embeddings Inference say it, also of too many texts."""

_PASSING = frozenset({429, 502, 503, 504})


class InputTooLong(EncoderUnavailable):
    """A text, or all of them together, is more than the server takes at once."""


class NotServed(EncoderUnavailable):
    """The server will answer the same again, whatever the texts: at the start that is a mistake of configuration."""


class Hiccup(EncoderUnavailable):
    """May have passed in a moment: the request may be sent again, since it changes nothing.

    Attributes:
        wanted_pause_s: what the server asked for, if it did.
    """

    wanted_pause_s: float = 0.0


class EmbeddingProtocol(Protocol):
    """How to ask one kind of server."""

    @property
    def name(self) -> str:
        """For people."""

    @property
    def root(self) -> str:
        """The path of an address that names none."""

    @property
    def path(self) -> str:
        """Of the call, below the address."""

    def request(self, texts: Sequence[str]) -> dict[str, Any]:
        """The body for these texts, none of them empty."""

    def vectors(self, answer: Mapping[str, Any]) -> list[Any]:
        """A list for each text, in their order, not yet looked into. Raises: EncoderUnavailable."""

    def missing(self) -> str:
        """What a 404 means and what to do."""


@dataclass(frozen=True, slots=True)
class OllamaProtocol:
    """Ollama's `/api/embed`. Nothing is ever cut: a text that does not fit is refused.

    Attributes:
        dimensions: 0: as many as the model makes.
        window_tokens: that Ollama shall load the model with.
    """

    model: str
    dimensions: int
    window_tokens: int

    name = "ollama"
    root = "/"
    path = "/api/embed"

    def request(self, texts: Sequence[str]) -> dict[str, Any]:
        """See `EmbeddingProtocol`."""
        return {
            "model": self.model,
            "input": list(texts),
            "truncate": False,
            "options": {"num_ctx": self.window_tokens},
            **({"dimensions": self.dimensions} if self.dimensions else {}),
        }

    def vectors(self, answer: Mapping[str, Any]) -> list[Any]:
        """See `EmbeddingProtocol`."""
        return _listed(answer.get("embeddings"))

    def missing(self) -> str:
        """See `EmbeddingProtocol`."""
        return f"Ollama has no model {self.model!r}; run: ollama pull {self.model}, or set EMBEDDING_MODEL"

    def check_shown(self, shown: Mapping[str, Any]) -> None:
        """Whether the model can be used, from the answer of `/api/show`.

        Raises: ConfigurationError: it runs elsewhere, or reads fewer tokens than it shall.
        """
        if shown.get("remote_host") or shown.get("remote_model"):
            raise ConfigurationError(
                f"model {self.model!r} runs on another server, so texts would leave the house: choose another"
            )
        about = shown.get("model_info")
        for key, reads in about.items() if isinstance(about, dict) else ():
            if key.endswith(".context_length") and isinstance(reads, int) and reads < self.window_tokens:
                raise ConfigurationError(
                    f"model {self.model!r} reads {reads} tokens: set embedding.window_tokens, now "
                    f"{self.window_tokens}, to that or less"
                )


@dataclass(frozen=True, slots=True)
class GatewayProtocol:
    """OpenAI's embeddings.

    Attributes:
        dimensions: 0: as many as the model makes.
    """

    model: str
    dimensions: int

    name = "gateway"
    root = "/v1"
    path = "/embeddings"

    def request(self, texts: Sequence[str]) -> dict[str, Any]:
        """See `EmbeddingProtocol`."""
        asked = {"dimensions": self.dimensions} if self.dimensions else {}
        return {"model": self.model, "input": list(texts), **asked}

    def vectors(self, answer: Mapping[str, Any]) -> list[Any]:
        """See `EmbeddingProtocol`. Each says which text it is of; their order is not promised."""
        entries = _listed(answer.get("data"))
        try:
            by_index = {entry["index"]: entry["embedding"] for entry in entries}
            return [by_index[position] for position in range(len(entries))]
        except (TypeError, LookupError):
            raise unreadable() from None

    def missing(self) -> str:
        """See `EmbeddingProtocol`."""
        return (
            f"the model gateway answered 404: it has no model {self.model!r} (set EMBEDDING_MODEL), "
            "or MODEL_GATEWAY_URL lacks its version, such as /v1"
        )


def failure(protocol: EmbeddingProtocol, status: int, body: bytes, *, retry_after: str | None) -> EncoderUnavailable:
    """What a refusal means. Its words may quote a text or the key: they are looked at and never repeated.

    Args:
        retry_after: the header, as it came; dates are not read.
    """
    if status == 413 or (status in (400, 422, 500) and _TOO_LONG.search(body.decode(errors="replace"))):
        return InputTooLong(
            f"the embedding server refuses even a part of a text as too long ({status}): "
            "set embedding.window_tokens to what its model reads"
        )
    if status in (401, 403):
        return NotServed(f"the embedding server refuses the key ({status}): set {KEY} to one that is good for it")
    if status == 404:
        return NotServed(protocol.missing())
    if status in _PASSING:
        error = Hiccup(f"the embedding server answered {status}" + (": it is busy" if status in (429, 503) else ""))
        if retry_after is not None and retry_after.isdecimal():
            error.wanted_pause_s = error.retry_after_s = min(float(retry_after), LONGEST_RETRY_AFTER_S)
        return error
    if status < 500 and status != 408:
        return NotServed(
            f"the embedding server refuses the request ({status}): check its address, EMBEDDING_MODEL and "
            "embedding.dimensions; its log says more"
        )
    return EncoderUnavailable(f"the embedding server answered {status}")


def read_object(body: bytes) -> dict[str, Any]:
    """Raises: EncoderUnavailable: no JSON object."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise unreadable() from None  # the library's error holds the answer
    if not isinstance(document, dict):
        raise unreadable()
    return document


def unreadable() -> EncoderUnavailable:
    """The answer is not what the protocol says."""
    return EncoderUnavailable("the embedding server sent what cannot be read")


def _listed(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise unreadable()
    return value
