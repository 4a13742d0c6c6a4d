"""A collector for tests: a real gRPC server that decodes what OTLP exporters send. It can hang, too."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from fleet import eventually
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan

KINDS = {number: name.removeprefix("SPAN_KIND_") for name, number in WireSpan.SpanKind.items()}


@dataclass(frozen=True)
class Span:
    """One span as it arrived."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    started_ns: int
    ended_ns: int
    attributes: Mapping[str, Any]
    links: tuple[tuple[str, str], ...]
    is_error: bool
    events: int
    resource: Mapping[str, Any]

    @property
    def role(self) -> str:
        """Which process of the service sent it."""
        return str(self.resource["service.instance.id"]).partition(":")[0]


@dataclass
class Receiver(TraceServiceServicer):
    """What came so far; made by `open_receiver`.

    Attributes:
        raw: every request as it was sent.
        hangs: requests are not answered until it is cleared.
    """

    url: str = ""
    spans: list[Span] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    hangs: bool = False
    asked: threading.Event = field(default_factory=threading.Event)
    _goes_on: threading.Event = field(default_factory=threading.Event)

    def Export(self, request: ExportTraceServiceRequest, context: Any) -> ExportTraceServiceResponse:  # noqa: N802
        self.asked.set()
        if self.hangs:
            self._goes_on.wait(60)
        self.raw.append(request.SerializeToString())
        for resource in request.resource_spans:
            named = _values(resource.resource.attributes)
            for scope in resource.scope_spans:
                self.spans.extend(_span(each, named) for each in scope.spans)
        return ExportTraceServiceResponse()

    def release(self) -> None:
        """Answer what hangs."""
        self.hangs = False
        self._goes_on.set()

    def trace(self, trace_id: str) -> list[Span]:
        """The spans of a trace so far, in the order of their starts."""
        return sorted((span for span in self.spans if span.trace_id == trace_id), key=lambda span: span.started_ns)

    async def trace_with(self, trace_id: str, *names: str, timeout_s: float = 20.0) -> list[Span]:
        """The spans of a trace once all that were begun have come and these are among them."""

        async def complete() -> bool:
            spans = self.trace(trace_id)
            return {*names} <= {span.name for span in spans}

        await eventually(
            complete, what=f"{names} in {[span.name for span in self.trace(trace_id)]}", timeout_s=timeout_s
        )
        return self.trace(trace_id)

    async def one(self, chosen: Callable[[Span], bool], *, what: str) -> Span:
        """The span that is chosen, once it is there."""

        async def there() -> bool:
            return any(map(chosen, list(self.spans)))

        await eventually(there, what=what, timeout_s=20.0)
        return next(span for span in self.spans if chosen(span))


def _span(span: WireSpan, resource: Mapping[str, Any]) -> Span:
    return Span(
        name=span.name,
        kind=KINDS[span.kind],
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        started_ns=span.start_time_unix_nano,
        ended_ns=span.end_time_unix_nano,
        attributes=_values(span.attributes),
        links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
        is_error=span.status.code == 2,
        events=len(span.events),
        resource=resource,
    )


def _values(attributes: Any) -> dict[str, Any]:
    def value(each: KeyValue) -> Any:
        return getattr(each.value, each.value.WhichOneof("value"))

    return {each.key: value(each) for each in attributes}


@contextmanager
def open_receiver() -> Iterator[Receiver]:
    """A collector at `url`."""
    receiver = Receiver()
    server = grpc.server(ThreadPoolExecutor(max_workers=8))
    add_TraceServiceServicer_to_server(receiver, server)
    port = server.add_insecure_port("127.0.0.1:0")
    receiver.url = f"http://127.0.0.1:{port}"
    server.start()
    try:
        yield receiver
    finally:
        receiver.release()
        server.stop(grace=0).wait(5)


def tree(spans: list[Span], *, below: str) -> dict[str, Any]:
    """Names of the spans beneath the span with this id, each with those beneath it."""
    return {span.name: tree(spans, below=span.span_id) for span in spans if span.parent_id == below}
