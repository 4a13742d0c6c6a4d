"""An answer's happenings as server-sent events. Source: WHATWG HTML, "Server-sent events"."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

from dats_common.errors import DatsError, InvalidInput
from services.query.answer_bodies import citation_of, response_of
from services.query.happenings import Answer, Cited, Found, Happening, Withdrawn
from services.query.problems import response_for

MEDIA_TYPE = "text/event-stream"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_KEEP_ALIVE_S = 10.0
"""Less than proxies wait for the next byte."""

MOST_EVENTS = 1_000_000
"""More than an answer can have: a model server's whole answer is 16 MiB, a line for each piece of it."""

_EVENT_ID = re.compile(r"(?P<answer_id>[A-Za-z0-9-]{1,64}):(?P<number>[0-9]{1,9})", re.ASCII)

Numbered = tuple[int, Happening | DatsError]


def event(name: str, data: Any, *, event_id: str) -> str:
    """One event; its data is one line of JSON, in ASCII: readers of lines split at other characters too."""
    return f"id: {event_id}\nevent: {name}\ndata: {json.dumps(data)}\n\n"


def position(last_event_id: str) -> tuple[str, int]:
    """Which answer was listened to, and how far: at most `MOST_EVENTS`. Raises: InvalidInput."""
    if not (read := _EVENT_ID.fullmatch(last_event_id)) or int(read["number"]) > MOST_EVENTS:
        raise InvalidInput("Last-Event-ID: is not the id of an event of this service")
    return read["answer_id"], int(read["number"])


async def as_events(
    happenings: AsyncGenerator[Numbered],
    *,
    first: Numbered,
    answer_id: str,
    ended: Callable[[Answer | Withdrawn | DatsError], None],
) -> AsyncIterator[str]:
    """The stream's text: `first`, then what follows, with a comment where nothing has happened for long.

    Args:
        ended: told of the whole answer, or of why there is none, before it leaves.
    """
    async with aclosing(happenings):
        numbered: Numbered | None = first
        while numbered is not None:
            number, happening = numbered
            if isinstance(happening, Answer | Withdrawn | DatsError):
                ended(happening)
            yield _event_of(happening, event_id=f"{answer_id}:{number}")
            following = asyncio.ensure_future(anext(happenings, None))
            try:
                while not (await asyncio.wait({following}, timeout=_KEEP_ALIVE_S))[0]:
                    yield ": still writing\n\n"
            finally:
                if not following.done():
                    following.cancel()
                    await asyncio.gather(following, return_exceptions=True)
            numbered = following.result()


def _event_of(happening: Happening | DatsError, *, event_id: str) -> str:
    match happening:
        case str():
            return event("token", {"text": happening}, event_id=event_id)
        case Cited(hit):
            return event("citation", citation_of(hit).model_dump(mode="json"), event_id=event_id)
        case Found():
            sources = [citation_of(hit).model_dump(mode="json") for hit in happening.hits]
            found = {"id": happening.answer_id, "model": happening.model, "sources": sources}
            return event("retrieval", found, event_id=event_id)
        case Answer():
            return event("done", response_of(happening).model_dump(mode="json"), event_id=event_id)
        case Withdrawn():
            fallen = {"id": happening.answer_id, "fallen": [key.artifact_id for key in happening.fallen]}
            return event("withdrawn", fallen, event_id=event_id)
        case DatsError():
            problem = json.loads(bytes(response_for(happening, instance="/api/v1/answer/stream").body))
            return event("error", problem, event_id=event_id)
