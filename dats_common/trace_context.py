"""W3C trace context: which trace a task works for, and how it crosses brokers, outboxes and processes as text.

No tracing library is known here: telemetry sets what is current; adapters, logs and metrics read it. It is None where
nobody traces. Source: W3C Trace Context, "traceparent Header".
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

TRACEPARENT_HEADER = "traceparent"
"""In HTTP, in a message's headers, and the name of the outbox's column."""

_TRACEPARENT = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?",
    re.ASCII | re.DOTALL,
)
_SAMPLED = 0x01
_LONGEST = 512


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A span of a trace.

    Attributes:
        trace_id, span_id: 32 and 16 hexadecimal digits, not all of them zero.
        is_sampled: its trace is recorded.
        is_remote: another process opened it.
    """

    trace_id: str
    span_id: str
    is_sampled: bool
    is_remote: bool = False

    @property
    def traceparent(self) -> str:
        """As text, 55 characters."""
        return f"00-{self.trace_id}-{self.span_id}-{_SAMPLED if self.is_sampled else 0:02x}"


def parse_traceparent(text: object) -> TraceContext | None:
    """What a stranger's header says; None: nothing that can be relied on, so that the trace begins here."""
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    if not isinstance(text, str) or len(text) > _LONGEST or not (read := _TRACEPARENT.fullmatch(text)):
        return None
    is_unknown = read["version"] == "ff" or (read["version"] == "00" and read["more"])
    if is_unknown or not int(read["trace"], 16) or not int(read["span"], 16):
        return None
    is_sampled = bool(int(read["flags"], 16) & _SAMPLED)
    return TraceContext(read["trace"], read["span"], is_sampled=is_sampled, is_remote=True)


_current: ContextVar[TraceContext | None] = ContextVar("the span that this task works in", default=None)


def current_trace() -> TraceContext | None:
    """The span that this task works in."""
    return _current.get()


@contextmanager
def within_trace(context: TraceContext | None) -> Iterator[None]:
    """Around work for a span that was opened elsewhere."""
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)


def callers_trace() -> TraceContext | None:
    """The current span of a program that uses OpenTelemetry; it is never loaded for this, and None where it is not."""
    loaded = sys.modules.get("opentelemetry.trace")
    ask = getattr(loaded, "get_current_span", None)
    span = ask().get_span_context() if ask else None
    if span is None or not span.is_valid:
        return None
    return TraceContext(f"{span.trace_id:032x}", f"{span.span_id:016x}", is_sampled=bool(span.trace_flags & _SAMPLED))


def trace_headers() -> dict[str, str]:
    """What a message or a request carries of the current trace."""
    current = _current.get()
    return {} if current is None else {TRACEPARENT_HEADER: current.traceparent}
