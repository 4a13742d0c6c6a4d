"""Opening spans. What is current is kept as text (`dats_common.trace_context`), so that adapters need no library."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    set_span_in_context,
)

from dats_common.telemetry.tracing.attributes import Attributes, allowed
from dats_common.trace_context import TraceContext, current_trace, within_trace

T = TypeVar("T")

_LEFT = (asyncio.CancelledError, GeneratorExit)


class OpenSpan:
    """A span in hand. Of an error only its class is told: its message may quote what somebody sent."""

    __slots__ = ("_span", "context")

    def __init__(self, span: Span, context: TraceContext | None) -> None:
        self._span = span
        self.context = context

    def tell(self, attributes: Attributes) -> None:
        """Add attributes of the allow-list; None is left out."""
        if self._span.is_recording():
            for name, value in allowed(attributes):
                self._span.set_attribute(name, value)

    def rename(self, name: str) -> None:
        """Once more is known than at the start."""
        self._span.update_name(name)

    def link(self, other: TraceContext | None) -> None:
        """Point to a span of another trace."""
        if other is not None:
            self._span.add_link(_span_context(other))

    def failed(self, error_type: str) -> None:
        """It ended with an error."""
        self.tell({"error.type": error_type})
        self._span.set_status(Status(StatusCode.ERROR))

    def left(self) -> None:
        """Nobody waited for its end, which is no error."""
        self.tell({"rag.cancelled": True})

    def end(self) -> None:
        """Its time is over, and it may be sent."""
        self._span.end()


_NOTHING = OpenSpan(INVALID_SPAN, None)


class Tracing:
    """The spans of one process."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def begin(
        self,
        name: str,
        *,
        kind: SpanKind,
        parent: TraceContext | None,
        links: Sequence[TraceContext] = (),
        attributes: Attributes,
    ) -> OpenSpan:
        """A span where work enters this process; whether it is recorded is the sampler's to say. The caller ends it."""
        above = set_span_in_context(INVALID_SPAN if parent is None else NonRecordingSpan(_span_context(parent)))
        span = self._tracer.start_span(
            name,
            context=above,
            kind=kind,
            links=[Link(_span_context(each)) for each in links],
            attributes=dict(allowed(attributes)),
        )
        return OpenSpan(span, _trace_context(span.get_span_context()))

    @contextmanager
    def step(
        self,
        name: str,
        attributes: Attributes,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> Iterator[OpenSpan]:
        """A part of the work at hand, current in the block.

        There is none where nothing is at hand, such as in a periodic sweep, and none where its trace is not recorded.
        """
        parent = current_trace()
        if parent is None or not parent.is_sampled:
            yield _NOTHING
            return
        span = self.begin(name, kind=kind, parent=parent, attributes=attributes)
        try:
            with within_trace(span.context):
                yield span
        except _LEFT:
            span.left()
            raise
        except BaseException as error:
            span.failed(type(error).__name__)
            raise
        finally:
            span.end()

    async def steps(
        self, name: str, attributes: Attributes, items: AsyncGenerator[T], *, kind: SpanKind
    ) -> AsyncGenerator[tuple[OpenSpan, T]]:
        """The items with the span of their making, from the first asked for to the last.

        It is current only while an item is made: the body of a generator runs in the context of whoever asks, and what
        that one does between two items is no part of this.
        """
        parent = current_trace()
        if parent is None or not parent.is_sampled:
            try:
                async for item in items:
                    yield _NOTHING, item
            finally:
                await items.aclose()
            return
        span = self.begin(name, kind=kind, parent=parent, attributes=attributes)
        try:
            while True:
                with within_trace(span.context):
                    try:
                        item = await anext(items)
                    except StopAsyncIteration:
                        return
                yield span, item
        except _LEFT:
            span.left()
            raise
        except BaseException as error:
            span.failed(type(error).__name__)
            raise
        finally:
            with within_trace(span.context):
                await items.aclose()
            span.end()


def _span_context(context: TraceContext) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if context.is_sampled else TraceFlags.DEFAULT)
    return SpanContext(int(context.trace_id, 16), int(context.span_id, 16), context.is_remote, flags)


def _trace_context(context: SpanContext) -> TraceContext | None:
    if not context.is_valid:
        return None
    is_sampled = bool(context.trace_flags & TraceFlags.SAMPLED)
    return TraceContext(f"{context.trace_id:032x}", f"{context.span_id:016x}", is_sampled=is_sampled)
