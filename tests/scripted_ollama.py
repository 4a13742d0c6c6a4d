"""An Ollama for tests: a real socket, a script of what it says and how it fails, and a record of what it was sent.

Without a script it answers every chat with `respond(messages)`, word by word, every rating with `rating`, and a judge's
question with `verdict`.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

T = TypeVar("T")

CHAT, SHOW, TAGS, VERSION = "/api/chat", "/api/show", "/api/tags", "/api/version"
LOAD = "a chat without messages"
NDJSON, JSON = "application/x-ndjson", "application/json"
MODEL = "llama3.2"
WAIT_S = 20.0

_BYTE_SIGNS = [chr(code) for first, last in ((33, 126), (161, 172), (174, 323)) for code in range(first, last + 1)]
"""How byte-level vocabularies write the 256 bytes. Source: GPT-2's `bytes_to_unicode`."""
BYTE_VOCABULARY: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": [*_BYTE_SIGNS, "qz"],
    "tokenizer.ggml.merges": ["q z"],
    "tokenizer.ggml.token_type": [1] * 257,
}
"""Of a model for which every byte is a token: how many a text has needs no tokenizer to tell."""
PER_MESSAGE, AT_THE_END = 5, 3
"""What that model's template adds, in tokens."""

Step = Mapping[str, Any] | bytes | asyncio.Event


@dataclass(frozen=True)
class Answer:
    """What to answer one request with.

    Attributes:
        steps: a mapping is sent as a line of JSON, bytes as they are, an event is waited for. As with Ollama the head
            goes out with the first line, so an event before it delays all.
        ends: `well`; `cut`: the connection is closed in the middle; `never`: it stays open, and nothing more comes.
    """

    steps: Sequence[Step] = ()
    status: int = 200
    content_type: str = NDJSON
    headers: Mapping[str, str] = field(default_factory=dict)
    ends: Literal["well", "cut", "never"] = "well"


@dataclass(frozen=True)
class Request:
    """A request as it was received. `body` is None where there was none."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any


def bytes_and_marks(messages: Sequence[Mapping[str, Any]]) -> int:
    """Tokens of a prompt for the model with `BYTE_VOCABULARY`."""
    return sum(len(each["content"].encode()) + PER_MESSAGE for each in messages) + AT_THE_END


def piece(content: str, **more: Any) -> dict[str, Any]:
    """One line of a stream; `thinking=` is what a model thinks beside it."""
    thinking = {"thinking": more.pop("thinking")} if "thinking" in more else {}
    return {"model": MODEL, "message": {"role": "assistant", "content": content, **thinking}, "done": False, **more}


def done(
    *, prompt_tokens: int = 10, response_tokens: int = 5, done_reason: str = "stop", **more: Any
) -> dict[str, Any]:
    """The last line of a stream."""
    counts = {"prompt_eval_count": prompt_tokens, "eval_count": response_tokens}
    return {**piece(""), "done": True, "done_reason": done_reason, **counts, **more}


def said(*pieces: str, **ending: Any) -> Answer:
    """A whole answer in these pieces; `ending` as `done` takes it."""
    return Answer([*map(piece, pieces), done(**ending)])


def refused(status: int, error: str, **headers: str) -> Answer:
    """A refusal in Ollama's form; header names with `_` for `-`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer([{"error": error}], status=status, content_type=JSON, headers=named)


HANGS = Answer(ends="never")


class ScriptedOllama:
    """The server; made by `open_scripted_ollama`. All of it may be changed while it runs.

    Attributes:
        url: its address.
        models: the entries of `/api/tags`; a chat with another model is answered 404.
        respond: from the messages of a chat to the text of its answer.
        count_tokens: from the messages to the `prompt_eval_count`; fewer than were sent tells of a cut prompt.
        at_once: the whole answer comes in one piece.
        rating: the text that answers a chat with a `format`, if that does not ask for a verdict.
        verdict: the text that answers one that does.
        model_info: what `/api/show` says of every model; None: this server has no such call.
        requests: all that came, in their order.
        connections: how many were opened.
        abandoned: how many answers a client did not stay for.
        in_hand: the chats and loads that are being answered.
        most_in_hand: the most that were at one moment.
        spent_s: seconds from a request's arrival to the end of its answer, of all of them together.
    """

    def __init__(self) -> None:
        self.url = ""
        self.models: list[dict[str, Any]] = [{"name": f"{MODEL}:latest", "model": f"{MODEL}:latest"}]
        self.respond: Callable[[list[dict[str, Any]]], str] = lambda messages: f"You asked {messages[-1]['content']}"
        self.count_tokens: Callable[[list[dict[str, Any]]], int] = _quarter_of_characters
        self.at_once = False
        self.rating = '{"score": 80}'
        self.verdict = '{"supported": true}'
        self.model_info: dict[str, Any] | None = None
        self.requests: list[Request] = []
        self.connections = 0
        self.abandoned = 0
        self.most_in_hand = 0
        self.in_hand = 0
        self.spent_s = 0.0
        self._script: dict[str, deque[Answer]] = defaultdict(deque)
        self._changed = asyncio.Condition()
        self._serving: dict[asyncio.Task[None], asyncio.Task[Any] | None] = {}

    def answers(self, *answers: Answer, path: str = CHAT) -> None:
        """Answer the next requests of a path (or `LOAD`) with these, in turn; those after them as without a script."""
        self._script[path].extend(answers)

    @property
    def chats(self) -> list[dict[str, Any]]:
        """What was sent to `/api/chat`, without what only loads a model."""
        return [request.body for request in self.requests if request.path == CHAT and request.body["messages"]]

    @property
    def loads(self) -> list[dict[str, Any]]:
        """What was sent to load a model."""
        return [request.body for request in self.requests if request.path == CHAT and not request.body["messages"]]

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait for something that a request, an answer's end or a client's leaving makes true."""
        async with asyncio.timeout(WAIT_S), self._changed:
            await self._changed.wait_for(true)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection. A task of its own reads from it, so that a client's leaving is seen while it is answered."""
        requests: asyncio.Queue[Request] = asyncio.Queue()
        reading = asyncio.create_task(_read_requests(reader, requests))
        self._serving[reading] = asyncio.current_task()
        self.connections += 1
        try:
            while (request := await _unless_gone(requests.get(), reading)) is not None:
                self.requests.append(request)
                async with self._at_hand(request):
                    answer = self._next_answer(request)
                    whole = await _unless_gone(_send(answer, writer), reading)
                    self.abandoned += whole is None
                if not whole:
                    break
        finally:
            reading.cancel()
            writer.close()

    async def close(self) -> None:
        """End every connection."""
        for reading in self._serving:
            reading.cancel()
        await asyncio.gather(*filter(None, self._serving.values()))

    @asynccontextmanager
    async def _at_hand(self, request: Request) -> AsyncIterator[None]:
        is_chat = request.path == CHAT
        self.in_hand += is_chat
        self.most_in_hand = max(self.most_in_hand, self.in_hand)
        started_s = time.perf_counter()
        await self._notify()
        try:
            yield
        finally:
            self.spent_s += time.perf_counter() - started_s
            self.in_hand -= is_chat
            await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _next_answer(self, request: Request) -> Answer:
        kind = LOAD if request.path == CHAT and not request.body["messages"] else request.path
        if self._script[kind]:
            return self._script[kind].popleft()
        if kind == VERSION:
            return _document({"version": "0.30.0"})
        if kind == TAGS:
            return _document({"models": self.models})
        if kind == SHOW and self.model_info is not None:
            return _document({"model_info": self.model_info})
        return self._chat(request.body) if request.path == CHAT else refused(404, "404 page not found")

    def _chat(self, body: dict[str, Any]) -> Answer:
        names = {name for entry in self.models for name in (entry["name"], entry["name"].removesuffix(":latest"))}
        if body["model"] not in names:
            return refused(404, f"model '{body['model']}' not found")
        if not body["messages"]:
            return _document({**piece(""), "done": True, "done_reason": "load"})
        text = self._structured(body["format"]) if "format" in body else self.respond(body["messages"])
        pieces = [text] if self.at_once else re.findall(r"\S+\s*|\s+", text)
        return said(*pieces, prompt_tokens=self.count_tokens(body["messages"]), response_tokens=len(pieces))

    def _structured(self, schema: Any) -> str:
        return self.verdict if "supported" in json.dumps(schema) else self.rating


@asynccontextmanager
async def open_scripted_ollama() -> AsyncIterator[ScriptedOllama]:
    """A server on a free port of 127.0.0.1, for as long as the context lasts."""
    ollama = ScriptedOllama()
    server = await asyncio.start_server(ollama.serve, "127.0.0.1", 0)
    ollama.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield ollama
    finally:
        server.close()
        await ollama.close()


def _document(document: Mapping[str, Any]) -> Answer:
    return Answer([document], content_type=JSON)


def _quarter_of_characters(messages: list[dict[str, Any]]) -> int:
    return sum(len(message["content"]) for message in messages) // 4


async def _unless_gone(doing: Coroutine[Any, Any, T], reading: asyncio.Task[None]) -> T | None:
    """What `doing` returns; None: the client went away first."""
    task = asyncio.create_task(doing)
    try:
        await asyncio.wait({task, reading}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    except ConnectionError:
        return None
    finally:
        task.cancel()


async def _send(answer: Answer, writer: asyncio.StreamWriter) -> bool:
    """Returns whether the connection is good for another request."""
    head = _head(answer)
    for step in answer.steps:
        if isinstance(step, asyncio.Event):
            await step.wait()
            continue
        data = step if isinstance(step, bytes) else json.dumps(step).encode() + b"\n"
        writer.write(head + b"%x\r\n%b\r\n" % (len(data), data))
        head = b""
        await writer.drain()
    if answer.ends == "never":
        await asyncio.Event().wait()
    if answer.ends == "cut":
        return False
    writer.write(head + b"0\r\n\r\n")
    await writer.drain()
    return True


def _head(answer: Answer) -> bytes:
    headers = {"Content-Type": answer.content_type, "Transfer-Encoding": "chunked", **answer.headers}
    lines = [f"HTTP/1.1 {answer.status} Scripted", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


async def _read_requests(reader: asyncio.StreamReader, requests: asyncio.Queue[Request]) -> None:
    """Until the client goes away."""
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[:-1])}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            method, path, _ = first.split()
            requests.put_nowait(Request(method, path, headers, json.loads(body) if body else None))
