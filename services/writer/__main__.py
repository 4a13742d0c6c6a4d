"""`python -m services.writer`: the embedding writer, active or waiting as a standby."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import TYPE_CHECKING

from dats_common.errors import ConfigurationError, DatsError
from dats_common.settings import Settings, load_settings
from dats_common.telemetry.logs import configure_logs, log
from services.lifeline import follow_parent
from services.runtime import new_event_loop, spare_the_collector

if TYPE_CHECKING:
    from services.writer.ports import WriterPorts

EXIT_CONFIGURATION = 78  # EX_CONFIG of sysexits.h
EXIT_UNAVAILABLE = 69  # EX_UNAVAILABLE


def run(settings: Settings) -> int:
    """Consume until SIGTERM or SIGINT, then drain. Returns the exit status."""
    from services.writer.wiring import open_writer_ports

    configure_logs(service="writer", level=settings.telemetry.log_level)
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(consume(settings, open_writer_ports(settings)))
    except ConfigurationError as error:
        log("writer").error("start_refused", detail=str(error))
        return EXIT_CONFIGURATION
    except DatsError as error:
        log("writer").error("start_failed", detail=str(error))
        return EXIT_UNAVAILABLE
    return 0


async def consume(settings: Settings, ports: AbstractAsyncContextManager[WriterPorts]) -> None:
    """Work over `ports` until SIGTERM or SIGINT. Raises: ConfigurationError, DatsError: as opening them does."""
    from services.writer.probes import Probes
    from services.writer.progress import watchdog
    from services.writer.wiring import open_writer, watched

    stop = asyncio.Event()
    starting = asyncio.current_task()
    assert starting is not None  # noqa: S101  a coroutine runs in a task

    def end_the_start() -> None:
        # Nothing is in hand yet, and a broker that is away is waited for without end.
        starting.cancel()
        stop.set()  # in case a library loses the cancellation: then the writer starts, and ends at once

    _on_signals(end_the_start)
    probes = Probes(asyncio.get_running_loop())
    with (
        probes.served(settings.server.host, settings.telemetry.writer_metrics_port),
        suppress(asyncio.CancelledError),
    ):
        async with ports as opened, open_writer(settings, opened) as writer:
            probes.watched = watched(settings, writer)
            _on_signals(stop.set)
            spare_the_collector()
            log("writer").info(
                "consuming", writer_id=writer.writer_id, model=writer.encoder.model, backend=writer.encoder.backend
            )
            with watchdog(writer.progress, limit_s=settings.events.watchdog_s):
                await writer.work(until=stop, drain_s=settings.events.drain_s)
    log("writer").info("stopped")


def _on_signals(react: Callable[[], object]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, react)


def main() -> int:
    """Settings from the environment, then `run`."""
    follow_parent(sys.argv[1:])
    try:
        return run(load_settings(None, os.environ))
    except ConfigurationError as error:
        sys.stderr.write(f"dats-rag writer: {error}\n")
        return EXIT_CONFIGURATION


if __name__ == "__main__":
    sys.exit(main())
