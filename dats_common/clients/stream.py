"""Reading an answer as it is written: server-sent events from lines, without a socket.

Source: WHATWG HTML, "Server-sent events", of which the service uses `id`, `event`, one line of `data`, and comments.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from dats_common.clients.errors import RAGUnexpected

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
