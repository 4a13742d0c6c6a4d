"""Hearing an answer as it is written, without a socket: events from lines, and what a broken connection calls for.

Source: WHATWG HTML, "Server-sent events", of which the service uses `id`, `event`, one line of `data`, and comments.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import httpx

from dats_common.clients.errors import RAGError, RAGUnavailable, RAGUnexpected
from dats_common.clients.exchange import Call, callers_headers, error_of, pause_before_retry
from dats_common.contracts.answers import AnswerResponse

EventName = Literal["retrieval", "token", "citation", "done", "error", "withdrawn"]
ENDS = frozenset({"done", "error", "withdrawn"})
_NAMES = frozenset({"retrieval", "token", "citation"}) | ENDS


@dataclass(frozen=True, slots=True)
class AnswerEvent:
    """One event of an answer on its way.

    Attributes:
        event: `retrieval` {id, model, sources}, `token` {text}, `citation`; at last `done` (the whole answer as
            `answer` returns it), `error` (a problem document) or `withdrawn` {id, fallen}: what was shown is void.
        event_id: where to go on after a lost connection.
    """

    event: EventName
    data: dict[str, Any]
    event_id: str

    @property
    def is_end(self) -> bool:
        """Whether nothing follows."""
        return self.event in ENDS


@dataclass(slots=True)
class EventReader:
    """Lines in, events out."""

    _fields: dict[str, str] = field(default_factory=dict)

    def read(self, line: str) -> AnswerEvent | None:
        """The event that an empty line completes; None for other lines, and for events of a newer service.

        Raises: RAGUnexpected: its data cannot be read.
        """
        if line:
            name, _, value = line.partition(":")
            self._fields[name] = value.removeprefix(" ")
            return None
        fields, self._fields = self._fields, {}
        if fields.get("event") not in _NAMES:
            return None
        try:
            data = json.loads(fields.get("data", ""))
        except ValueError as error:
            raise RAGUnexpected("an event of the answer is not JSON") from error
        if not isinstance(data, dict):
            raise RAGUnexpected("an event of the answer is not an object")
        return AnswerEvent(cast(EventName, fields["event"]), data, fields.get("id", ""))


Failure = RAGError | httpx.RequestError | httpx.InvalidURL | TimeoutError
"""Why a connection ended before the answer did. A connection that was closed in order has none."""


@dataclass(slots=True)
class Listening:
    """How far an answer was heard, and when to listen again: one course for both clients.

    Attributes:
        call: begins the answer. From the first event on it may be sent again, because then it only goes on.
        timeout_s: for the answer in all, from now.
        clock: seconds, monotonic.
        jitter: a random number in [0, 1): clients that failed together must not return together.
    """

    call: Call[AnswerResponse]
    timeout_s: float
    clock: Callable[[], float]
    jitter: Callable[[], float]
    _deadline_s: float = field(init=False)
    _attempts: int = 0
    _last_id: str = ""

    def __post_init__(self) -> None:
        self._deadline_s = self.clock() + self.timeout_s

    def left_s(self) -> float:
        """Seconds until the deadline; negative behind it."""
        return self._deadline_s - self.clock()

    def heard(self, event: AnswerEvent) -> None:
        """From here a next connection goes on."""
        self._last_id = event.event_id

    def arguments(self, base_url: str) -> dict[str, Any]:
        """Arguments of httpx's `stream`."""
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream", **callers_headers()}
        return {
            "method": self.call.method,
            "url": f"{base_url}{self.call.path}/stream",
            "content": self.call.body,
            "headers": {**headers, "Last-Event-ID": self._last_id} if self._last_id else headers,
            "timeout": max(self.left_s(), 0.001),
        }

    def pause_s(self, failure: Failure | None) -> float:
        """Seconds to wait before listening again.

        Raises: RAGError: it is of no use, there is no time for it, or it could begin a second answer.
        """
        match failure:
            case None:
                error: RAGError = RAGUnavailable("the stream broke off before the answer ended")
            case RAGError():
                error = failure
            case _:
                error = error_of(failure, timeout_s=self.timeout_s)
        self._attempts += 1
        delay_s = pause_before_retry(
            replace(self.call, repeatable=bool(self._last_id)),
            None if isinstance(failure, RAGError) else failure,
            error,
            attempt=self._attempts,
            jitter=self.jitter(),
        )
        if delay_s is None or delay_s >= self.left_s():
            raise error
        return delay_s
