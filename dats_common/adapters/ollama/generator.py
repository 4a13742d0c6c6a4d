"""Answers by a model that Ollama runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from typing import Any

import aiohttp

from dats_common.adapters.ollama.client import OllamaClient, lines_of, next_line, open_client
from dats_common.adapters.ollama.names import full_name, listed_digest, refuse_cloud
from dats_common.adapters.ollama.own_tokens import OwnTokens
from dats_common.adapters.ollama.rating import SCORE_SCHEMA, read_score
from dats_common.adapters.ollama.slots import Slots
from dats_common.adapters.ollama.thinking import WithoutThoughts
from dats_common.adapters.ollama.wire import (
    CHAT,
    TAGS,
    ThinkRefused,
    chat_request,
    load_request,
    read_line,
    without_thinking,
)
from dats_common.domain.prompt import Message, rating_messages
from dats_common.errors import LLMConnectionError, LLMTimeoutError, RAGServiceError
from dats_common.records import Assignment, Drafted

_END_S = 0.2
"""Longest wait for the end of a stream whose last line has come: a server sends both together."""

KNOWN_S = 5.0
"""A model that was there is believed to be there so long: one look-up for a burst of requests, not one for each."""

RATING_MAX_TOKENS = 32
"""The object with the score is eight tokens, and some models space it out."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long to wait for what.

    Attributes:
        total_s: one answer, its wait for a slot included.
        first_token_s: from the request to its first line: the server's own queue, loading and reading the prompt.
        between_tokens_s: from a line to the next.
        rating_s: one rating, from when it has a slot; it waits for that no longer than `total_s`.
        connect_s: one connection.
        lookup_s: a version, the list of models.
        load_s: a model's way into memory.
        vocabulary_s: a model's vocabulary, which is megabytes.
    """

    total_s: float = 30.0
    first_token_s: float = 20.0
    between_tokens_s: float = 10.0
    rating_s: float = 10.0
    connect_s: float = 2.0
    lookup_s: float = 5.0
    load_s: float = 300.0
    vocabulary_s: float = 60.0


class OllamaGenerator:
    """Implements `ports.Generator`; made by `open_ollama`.

    Attributes:
        tokens: how its models count; nothing is learned of a model before somebody asks for it there.
    """

    def __init__(
        self,
        client: OllamaClient,
        *,
        timeouts: Timeouts,
        slots: Slots,
        keep_alive_s: int,
        clock: Callable[[], float],
        spent: Callable[[Drafted], None],
    ) -> None:
        self._client = client
        self._spent = spent
        self._timeouts = timeouts
        self._slots = slots
        self._keep_alive_s = keep_alive_s
        self._clock = clock
        self._known_until: dict[str, float] = {}
        self._cannot_think: set[str] = set()
        self._loading: dict[str, asyncio.Task[Any]] = {}
        self.tokens = OwnTokens(
            client, require=self.require, measure=self._measure, within_s=timeouts.vocabulary_s, clock=clock
        )

    async def require(self, model: str) -> None:
        """See `ports.Generator`. A model that Ollama would ask elsewhere is not here either: the prompt would leave."""
        refuse_cloud(model)
        asked_at = self._clock()
        if asked_at < self._known_until.get(full_name(model), asked_at):
            return
        listing = await self._client.ask("GET", TAGS, within_s=self._timeouts.lookup_s)
        self.tokens.saw(model, digest=listed_digest(listing, model))
        self._known_until[full_name(model)] = asked_at + KNOWN_S

    async def generate(self, assignment: Assignment) -> AsyncGenerator[str | Drafted]:
        """See `ports.Generator`."""
        shown = WithoutThoughts()
        options = {"num_predict": assignment.max_response_tokens, "temperature": assignment.temperature}
        request = self._request(assignment, assignment.messages, options)
        if assignment.response_schema is not None:
            request["format"] = assignment.response_schema
        async with aclosing(self._chat(request, within_s=self._timeouts.total_s)) as draft:
            async for part in draft:
                piece = shown.feed(part) if isinstance(part, str) else shown.end()
                if piece:
                    yield piece
                if isinstance(part, Drafted):
                    yield part

    async def rate(self, assignment: Assignment, answer: str) -> int | None:
        """See `ports.Generator`."""
        messages = rating_messages(assignment.question, sources=assignment.sources, answer=answer)
        options = {"num_predict": RATING_MAX_TOKENS, "temperature": 0}
        pieces = []
        try:
            request = {**self._request(assignment, messages, options), "format": SCORE_SCHEMA}
            async with (
                self.second_calls() as ours,
                aclosing(ours._chat(request, within_s=self._timeouts.rating_s)) as draft,
            ):
                pieces = [part async for part in draft if isinstance(part, str)]
        except RAGServiceError:
            return None
        shown = WithoutThoughts()
        return read_score("".join([*map(shown.feed, pieces), shown.end()]))

    @asynccontextmanager
    async def second_calls(self) -> AsyncIterator[OllamaGenerator]:
        """See `ports.Generator`: the same generator with one slot. It is not refused where too many drafts wait, and
        waits no longer than any draft may take."""
        until = asyncio.get_running_loop().time() + self._timeouts.total_s
        async with self._slots.held(until=until, urgent=True):
            ours = copy(self)  # all that it knows is shared; only its slot is its own
            ours._slots = Slots(concurrent=1, queue=0)
            yield ours

    async def ping(self) -> None:
        """See `ports.Generator`."""
        await self._client.ask("GET", "/api/version", within_s=self._timeouts.lookup_s)

    async def warm_up(self, model: str, *, window_tokens: int) -> None:
        """Have the model loaded with the window that its assignments name. One load of a model runs at a time.

        It goes on when its caller goes away, since Ollama gives a load up when its connection closes.

        Raises: ModelUnavailableError; LLMConnectionError: not loaded in time, too.
        """
        await asyncio.shield(self._load(model, window_tokens))

    async def close(self) -> None:
        """Give up what is still loading or being learned."""
        await self.tokens.close()
        loads = list(self._loading.values())
        for load in loads:
            load.cancel()
        await asyncio.gather(*loads, return_exceptions=True)

    def _request(
        self, assignment: Assignment, messages: tuple[Message, ...], options: Mapping[str, Any]
    ) -> dict[str, Any]:
        return chat_request(
            assignment.model,
            messages,
            window_tokens=assignment.window_tokens,
            keep_alive_s=self._keep_alive_s,
            options=options,
        )

    async def _measure(self, model: str, messages: Sequence[Message], *, window_tokens: int) -> int | None:
        """Tokens of a prompt by the server's own count; None: it gives none. Raises: as `generate`."""
        request = chat_request(
            model,
            messages,
            window_tokens=window_tokens,
            keep_alive_s=self._keep_alive_s,
            options={"num_predict": 1, "temperature": 0},
        )
        ended: Drafted | None = None
        async with aclosing(self._lines(request, within_s=self._timeouts.total_s)) as lines:
            async for raw in lines:
                ended = read_line(raw, request=request, may_be_short=True).ended or ended
        return ended.prompt_tokens if ended else None

    async def _chat(self, request: dict[str, Any], *, within_s: float) -> AsyncGenerator[str | Drafted]:
        """What the model writes, thoughts and all, then what the server counted."""
        ended: Drafted | None = None
        async with aclosing(self._lines(request, within_s=within_s)) as lines:
            async for raw in lines:
                line = read_line(raw, request=request)
                if line.content:
                    yield line.content
                if ended := line.ended:
                    # Read to its end, which comes at once, the connection serves the next chat too.
                    with suppress(TimeoutError, RAGServiceError):
                        async with asyncio.timeout(_END_S):
                            await anext(lines, None)
                    break
        if ended is None:
            raise LLMConnectionError("the model server ended before the answer did")
        self._spent(ended)
        yield ended

    async def _lines(self, request: dict[str, Any], *, within_s: float) -> AsyncGenerator[bytes]:
        """The answer's lines, as long as the slot is held."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + within_s
        async with self._slots.held(until=deadline), AsyncExitStack() as answer:
            answer.enter_context(self._forgotten_if_away(request["model"]))
            until = min(deadline, clock() + self._timeouts.first_token_s)
            try:
                response = await self._begin(answer, request, until=until)
                lines = await answer.enter_async_context(aclosing(lines_of(response)))
                raw = await next_line(lines, until=until)
            except LLMTimeoutError:
                # If the model was loading, Ollama has given that up with our connection; each later request would
                # begin it anew and be late again.
                self._load(request["model"], request["options"]["num_ctx"])
                raise
            while raw is not None:
                yield raw
                raw = await next_line(lines, until=min(deadline, clock() + self._timeouts.between_tokens_s))

    @contextmanager
    def _forgotten_if_away(self, model: str) -> Iterator[None]:
        """After a chat that broke off `require` asks anew: whoever comes next may have an answer without a model."""
        try:
            yield
        except LLMConnectionError:
            self._known_until.pop(full_name(model), None)
            raise

    async def _begin(self, answer: AsyncExitStack, request: dict[str, Any], *, until: float) -> aiohttp.ClientResponse:
        """An answer that has begun. A model that `think: false` offends is asked without, from now on."""
        spared = without_thinking(request)
        if request["model"] not in self._cannot_think:
            try:
                return await answer.enter_async_context(self._client.answering("POST", CHAT, until=until, body=request))
            except ThinkRefused:
                pass
        response = await answer.enter_async_context(self._client.answering("POST", CHAT, until=until, body=spared))
        self._cannot_think.add(request["model"])
        return response

    def _load(self, model: str, window_tokens: int) -> asyncio.Task[Any]:
        load = self._loading.get(model)
        if load is None or load.done():
            request = load_request(model, window_tokens=window_tokens, keep_alive_s=self._keep_alive_s)
            asking = self._client.ask("POST", CHAT, within_s=self._timeouts.load_s, body=request)
            load = self._loading[model] = asyncio.create_task(asking, name=f"ollama-load-{model}")
            load.add_done_callback(_heed)
        return load


def _heed(load: asyncio.Task[Any]) -> None:
    """Nobody may be waiting for it any more; whoever is gets its error all the same."""
    if not load.cancelled():
        load.exception()


@asynccontextmanager
async def open_ollama(
    base_url: str,
    *,
    timeouts: Timeouts,
    concurrent: int,
    queue: int,
    keep_alive_s: int,
    clock: Callable[[], float] = time.monotonic,
    spent: Callable[[Drafted], None] = lambda _: None,
) -> AsyncIterator[OllamaGenerator]:
    """A generator on the Ollama at `base_url`; opening it asks nothing yet.

    Args:
        concurrent: chats that run at once, ratings too.
        queue: drafts that wait for one of those to end; further ones are refused at once, ratings and verdicts never.
        keep_alive_s: how long Ollama keeps a model in memory after a chat.
        clock: seconds, monotonic: for how long a model is known to be there.
        spent: told of each chat's tokens, also of ratings and verdicts, which no answer names.

    Raises: ConfigurationError: not the address of an HTTP server.
    """
    async with open_client(base_url, connect_timeout_s=timeouts.connect_s) as client:
        generator = OllamaGenerator(
            client,
            timeouts=timeouts,
            slots=Slots(concurrent=concurrent, queue=queue),
            keep_alive_s=keep_alive_s,
            clock=clock,
            spent=spent,
        )
        try:
            yield generator
        finally:
            await generator.close()
