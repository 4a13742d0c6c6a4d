"""What an orchestrator asks a writer, and its metrics, on one port of its own.

The answers come from a thread, so that a loop that hangs is told and not waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeVar

from dats_common.errors import Unavailable
from dats_common.telemetry.metrics import Metrics
from dats_common.telemetry.serving import served
from services.writer.progress import Progress

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

_T = TypeVar("_T")

LIVE = "/health/live"
READY = "/health/ready"
METRICS = "/metrics"

_LOOP_TIMEOUT_S = 2.0
_LOOK_TIMEOUT_S = 3.0
_MARGIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Watched:
    """A writer at work, as the probes see it.

    Attributes:
        needs: by name, asks what every event needs; raises Unavailable.
        silence_limit_s: of a batch in hand; the watchdog ends the process at the same limit.
    """

    progress: Progress
    silence_limit_s: float
    needs: Mapping[str, Callable[[], Awaitable[object]]]
    metrics: Metrics


@dataclass(slots=True)
class Probes:
    """Live: the loop turns and no batch hangs. Ready: a writer is there, and all it needs answers.

    A standby is as ready as the active writer: it would take over. While the broker is waited for at the start, the
    process is live and not ready.
    """

    loop: asyncio.AbstractEventLoop
    watched: Watched | None = field(default=None)

    def live(self) -> str:
        """Why not; empty when all is well."""
        if self._on_loop(_turned(), within_s=_LOOP_TIMEOUT_S) is None:
            return f"the event loop did not turn within {_LOOP_TIMEOUT_S} s"
        if self.watched is not None and self.watched.progress.silent_s > self.watched.silence_limit_s:
            return f"a batch has made no progress for {self.watched.progress.silent_s:.0f} s"
        return ""

    def ready(self) -> str:
        """Why not; empty when all is well. Anyone may ask: what is away is said in a word, and no address."""
        if self.watched is None:
            return "starting"
        away = self._on_loop(_away(self.watched.needs), within_s=_LOOK_TIMEOUT_S + _MARGIN_S)
        if away is None:
            return "the event loop did not turn"
        return f"away: {', '.join(away)}" if away else ""

    def _on_loop(self, work: Coroutine[object, object, _T], *, within_s: float) -> _T | None:
        """What the work returns; None: not in time."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(within_s)
        except (TimeoutError, CancelledError):
            future.cancel()
            return None

    @contextmanager
    def served(self, host: str, port: int) -> Iterator[None]:
        """Answer on this port from threads; port 0 serves nothing. Raises: ConfigurationError: the port is taken."""
        if port == 0:
            yield
            return
        with served(self._wsgi, host, port, remedy="set DATS_WRITER_METRICS_PORT to another"):
            yield

    def _wsgi(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == METRICS and self.watched is not None:
            body, content_type = self.watched.metrics.exposition(environ.get("HTTP_ACCEPT", ""))
            start_response("200 OK", [("Content-Type", content_type)])
            return [body]
        looks: dict[str, Callable[[], str]] = {LIVE: self.live, READY: self.ready, METRICS: lambda: "starting"}
        trouble = looks[path]() if path in looks else ""
        status = HTTPStatus.SERVICE_UNAVAILABLE if trouble else HTTPStatus.OK if path in looks else HTTPStatus.NOT_FOUND
        start_response(f"{status.value} {status.phrase}", [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{trouble or status.phrase}\n".encode()]


async def _turned() -> bool:
    return True


async def _away(needs: Mapping[str, Callable[[], Awaitable[object]]]) -> list[str]:
    answers = await asyncio.gather(*(_answers(ask) for ask in needs.values()))
    return [name for name, answered in zip(needs, answers, strict=True) if not answered]


async def _answers(ask: Callable[[], Awaitable[object]]) -> bool:
    try:
        async with asyncio.timeout(_LOOK_TIMEOUT_S):
            await ask()
    except (Unavailable, TimeoutError):
        return False
    return True
