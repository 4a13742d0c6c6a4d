"""The encoder whose model runs on another server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from dats_common.adapters.encoder_http import estimate
from dats_common.adapters.encoder_http.client import EmbeddingClient, open_client
from dats_common.adapters.encoder_http.wire import (
    EmbeddingProtocol,
    GatewayProtocol,
    InputTooLong,
    NotServed,
    OllamaProtocol,
    unreadable,
)
from dats_common.errors import ConfigurationError, EncoderUnavailable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

DOCUMENT_REQUESTS = 2
"""While the server computes one batch of documents, the next one is on its way."""

QUERY_REQUESTS = 16
"""Of one text each: as many as a server takes in beside the documents; further ones wait their turn."""

MOST_WINDOWS = 4
"""A text is cut at so many windows by the estimate, which may count four tokens for one: a chunk that another model's
tokenizer has made is not cut once more."""

MOST_HALVINGS = 3
"""The estimate may also count one token for 1.7, and an eighth of four such windows fits."""

LOAD_S = 120.0
"""For the first answers: the server may have to load its model. Nobody waits yet but who started the service."""

MAX_BYTES_A_TEXT = 256 * 1024  # 8,192 numbers of 32 characters.
MAX_SHOWN_BYTES = 16 * 1024 * 1024  # Licences and templates.

BLANK = " "
"""In place of a text without a character: servers refuse an empty one."""


@dataclass(frozen=True, slots=True)
class Remote:
    """What is asked of a server, and how.

    Attributes:
        model: its name there.
        api_key: sent as a bearer token; None: none is.
        dimensions: length of a vector that the server is asked for; 0: as the model makes them.
        window_tokens: that the model reads, special tokens and prefix included.
        query_prefix, document_prefix: put before each text, as some models were trained.
        batch_size: texts of one request.
        timeout_s: longest time for one request, its wait behind others and further tries included.
        connect_timeout_s: longest time for one connection.
    """

    model: str
    api_key: str | None = field(default=None, repr=False)
    dimensions: int = 0
    window_tokens: int = 512
    query_prefix: str = ""
    document_prefix: str = ""
    batch_size: int = 32
    timeout_s: float = 20.0
    connect_timeout_s: float = 2.0

    @property
    def max_tokens(self) -> int:
        """What of the window is left for a text and the special tokens."""
        prefixes = (self.query_prefix, self.document_prefix)
        return self.window_tokens - max(len(estimate.token_spans(prefix)) for prefix in prefixes)


@dataclass(frozen=True, slots=True)
class _Lane:
    """How texts of one kind travel."""

    prefix: str
    slots: asyncio.Semaphore


class HttpEncoder:
    """Implements `ports.Encoder`. For one event loop; made by `open_ollama_encoder` or `open_gateway_encoder`."""

    def __init__(
        self, client: EmbeddingClient, protocol: EmbeddingProtocol, remote: Remote, *, name: str, dimension: int
    ) -> None:
        """Wrap a connection.

        Args:
            name: of the model, to record.
            dimension: length of the vectors that the server makes.
        """
        self.model = name
        self.backend = protocol.name
        self.dimension = dimension
        self.max_tokens = remote.max_tokens
        self._client = client
        self._protocol = protocol
        self._remote = remote
        # Lanes of their own: no query waits here behind documents.
        self._lanes = {
            "query": _Lane(remote.query_prefix, asyncio.Semaphore(QUERY_REQUESTS)),
            "document": _Lane(remote.document_prefix, asyncio.Semaphore(DOCUMENT_REQUESTS)),
        }

    async def encode(self, texts: Sequence[str], *, kind: Literal["query", "document"]) -> npt.NDArray[np.float32]:
        """See `ports.Encoder`. What a server refuses as too long is asked in parts, up to `MOST_WINDOWS`."""
        import numpy as np

        fitting = [_encodable(text)[: self._reach(text)] for text in texts]
        firsts = range(0, len(fitting), self._remote.batch_size)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(
                        self._vectors(fitting[first : first + self._remote.batch_size], self._lanes[kind]),
                        name="encode",
                    )
                    for first in firsts
                ]
        except* EncoderUnavailable as errors:
            failure = errors.exceptions[0]
        else:
            return np.concatenate([np.empty((0, self.dimension), np.float32), *(task.result() for task in tasks)])
        raise failure

    def token_spans(self, text: str) -> list[tuple[int, int]]:
        """See `ports.Encoder`: an estimate on the safe side, since a server does not lend its tokenizer."""
        return estimate.token_spans(text)

    def _reach(self, text: str) -> int:
        """How many characters of a text count."""
        most = MOST_WINDOWS * self.max_tokens
        spans = estimate.token_spans(text) if len(text) > most // estimate.MOST_A_CHARACTER else []
        return spans[most][0] if len(spans) > most else len(text)

    async def _vectors(
        self, texts: Sequence[str], lane: _Lane, *, halvings: int = MOST_HALVINGS
    ) -> npt.NDArray[np.float32]:
        """The vectors of one request, or of two halves of it where the server finds it too long.

        A single text is not cut even then: its vector is the mean of its halves', weighted by their length.
        Source: OpenAI's cookbook, "Embedding texts that are longer than the model's maximum context length".
        """
        import numpy as np

        try:
            return await self._asked(texts, lane)
        except InputTooLong:
            if len(texts) == 1 and (not halvings or len(texts[0]) < 2):
                raise
        if len(texts) > 1:
            middle = len(texts) // 2
            first = await self._vectors(texts[:middle], lane)
            return np.concatenate([first, await self._vectors(texts[middle:], lane)])
        middle = len(texts[0]) // 2
        halves = [
            await self._vectors([half], lane, halvings=halvings - 1) for half in (texts[0][:middle], texts[0][middle:])
        ]
        return _unit_vectors(np.average(halves, axis=0, weights=[middle, len(texts[0]) - middle]), texts=1)

    async def _asked(self, texts: Sequence[str], lane: _Lane) -> npt.NDArray[np.float32]:
        # One moment for the wait behind others and the request: a server that hangs is given up by all at once.
        until = asyncio.get_running_loop().time() + self._remote.timeout_s
        try:
            async with asyncio.timeout_at(until):
                await lane.slots.acquire()
        except TimeoutError:
            raise EncoderUnavailable("the embedding server did not answer in time") from None
        try:
            vectors = await _request(
                self._client,
                self._protocol,
                [lane.prefix + text or BLANK for text in texts],
                within_s=until - asyncio.get_running_loop().time(),
            )
        finally:
            lane.slots.release()
        if vectors.shape[1] != self.dimension:
            raise EncoderUnavailable(
                f"the embedding server sent vectors of {vectors.shape[1]} numbers, at the start it was "
                f"{self.dimension}: what it calls {self._remote.model!r} has changed; restart, which says what to do"
            )
        return vectors


async def _request(
    client: EmbeddingClient, protocol: EmbeddingProtocol, texts: Sequence[str], *, within_s: float
) -> npt.NDArray[np.float32]:
    """Unit vectors of texts, none of them empty, of whatever dimension. Raises: EncoderUnavailable."""
    answer = await client.ask(
        protocol.path, protocol.request(texts), max_bytes=(len(texts) + 1) * MAX_BYTES_A_TEXT, within_s=within_s
    )
    return _unit_vectors(protocol.vectors(answer), texts=len(texts))


def _unit_vectors(vectors: Sequence[Any] | npt.NDArray[Any], *, texts: int) -> npt.NDArray[np.float32]:
    """What a server sent, as the port promises it.

    Raises: EncoderUnavailable: not a vector for each text, or numbers without a direction.
    """
    import numpy as np

    if len(vectors) != texts:
        raise EncoderUnavailable(f"the embedding server sent {len(vectors)} vectors for {texts} texts")
    try:
        array = np.asarray(vectors)
    except ValueError:
        raise unreadable() from None  # of different lengths
    if array.ndim != 2 or array.dtype.kind not in "fi":
        raise unreadable()
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused below
        lengths = np.linalg.norm(array.astype(np.float64), axis=1, keepdims=True)
    if not (np.isfinite(lengths).all() and lengths.all()):
        raise EncoderUnavailable("the embedding server sent a vector that is zero or not finite")
    unit: npt.NDArray[np.float32] = (array / lengths).astype(np.float32)
    return unit


def _encodable(text: str) -> str:
    """Lone surrogates replaced one for one: many servers refuse them."""
    return text if text.isascii() else text.encode(errors="replace").decode()


@asynccontextmanager
async def open_ollama_encoder(base_url: str, remote: Remote) -> AsyncIterator[HttpEncoder]:
    """An encoder on the Ollama at `base_url`; its first answer is waited for, for which Ollama loads the model.

    Raises: ConfigurationError: not an address, no such model there, one that runs elsewhere, another window or
        dimension than was asked for; EncoderUnavailable: the server is away.
    """
    protocol = OllamaProtocol(remote.model, remote.dimensions, remote.window_tokens)
    name = remote.model.lower().removesuffix(":latest")  # as Ollama compares names
    async with _open(base_url, protocol, remote) as client:
        with _telling_the_operator():
            shown = await client.ask("/api/show", {"model": remote.model}, max_bytes=MAX_SHOWN_BYTES, within_s=LOAD_S)
        protocol.check_shown(shown)
        yield await _first_answered(client, protocol, remote, name=name)


@asynccontextmanager
async def open_gateway_encoder(base_url: str, remote: Remote) -> AsyncIterator[HttpEncoder]:
    """An encoder on the gateway at `base_url`, its version included; where there is no path `/v1` is meant.

    Raises: ConfigurationError: not an address, no such model there, a key that is not good, another dimension than was
        asked for; EncoderUnavailable: the server is away.
    """
    protocol = GatewayProtocol(remote.model, remote.dimensions)
    async with _open(base_url, protocol, remote) as client:
        yield await _first_answered(client, protocol, remote, name=remote.model)


def _open(base_url: str, protocol: EmbeddingProtocol, remote: Remote) -> AbstractAsyncContextManager[EmbeddingClient]:
    if remote.max_tokens <= remote.window_tokens // 2:
        raise ConfigurationError(
            "embedding.query_prefix and document_prefix leave less than half of the model's window"
        )
    return open_client(base_url, protocol, api_key=remote.api_key, connect_timeout_s=remote.connect_timeout_s)


async def _first_answered(
    client: EmbeddingClient, protocol: EmbeddingProtocol, remote: Remote, *, name: str
) -> HttpEncoder:
    """The encoder, once it is known how long its vectors are. Raises: ConfigurationError, EncoderUnavailable."""
    with _telling_the_operator():
        vectors = await _request(client, protocol, ["ready?"], within_s=LOAD_S)
    dimension = vectors.shape[1]
    if remote.dimensions not in (0, dimension):
        raise ConfigurationError(
            f"embedding.dimensions is {remote.dimensions}, but the server's vectors of {remote.model!r} have "
            f"{dimension} numbers: set it to 0, or choose a model and a server that shorten vectors"
        )
    return HttpEncoder(client, protocol, remote, name=name, dimension=dimension)


@contextmanager
def _telling_the_operator() -> Iterator[None]:
    """At the start, what the server will never do is a mistake of configuration."""
    try:
        yield
    except NotServed as error:
        raise ConfigurationError(str(error)) from None
