"""`python -m services.query`: one query replica."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from dats_common.errors import ConfigurationError, DatsError
from dats_common.settings import Settings, load_settings
from dats_common.telemetry.logs import configure_logs, log
from services.lifeline import follow_parent
from services.runtime import new_event_loop, spare_the_collector

EXIT_CONFIGURATION = 78  # EX_CONFIG of sysexits.h
EXIT_UNAVAILABLE = 69  # EX_UNAVAILABLE
_BACKLOG = 512


def run(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; requests in hand are finished. Returns the exit status."""
    configure_logs(service="query", level=settings.telemetry.log_level)
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_serve(settings))
    except ConfigurationError as error:
        log("query").error("start_refused", detail=str(error))
        return EXIT_CONFIGURATION
    except DatsError as error:
        log("query").error("start_failed", detail=str(error))
        return EXIT_UNAVAILABLE
    except KeyboardInterrupt:
        return 0
    return 0


async def _serve(settings: Settings) -> None:
    import uvicorn

    from services.query.app import build_app
    from services.query.gate import RateLimits
    from services.query.limits import HttpLimits
    from services.query.wiring import open_authenticator, open_query_services, require_safe_exposure

    require_safe_exposure(settings)
    with _listening(settings.server.host, settings.server.port) as listener:
        async with open_query_services(settings) as services, open_authenticator(settings, services) as authenticator:
            app = build_app(
                services,
                authenticator=authenticator,
                rates=RateLimits(requests_per_minute=settings.auth.requests_per_minute, clock=time.monotonic),
                limits=HttpLimits(
                    body_bytes=settings.server.body_limit_bytes,
                    body_timeout_s=settings.server.body_timeout_s,
                    concurrent_requests=settings.server.concurrent_requests,
                ),
            )
            config = uvicorn.Config(
                app,
                lifespan="off",
                log_config=None,
                access_log=False,
                # Connections, idle ones too; requests are bounded by ours, withdrawals by as many again.
                limit_concurrency=_BACKLOG + 2 * settings.server.concurrent_requests,
                timeout_graceful_shutdown=round(settings.query.deadline_s + settings.query.embed_wait_s),
            )
            # The server raises the signal that stopped it once more when it is done: that must not end the process
            # before what is opened above was closed.
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: None)
            log("query").info("serving", host=settings.server.host, port=settings.server.port)
            spare_the_collector()
            await uvicorn.Server(config).serve(sockets=[listener])
    log("query").info("stopped")


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """Bind before anything is loaded, so that a taken port is told at once. Raises: ConfigurationError."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(_BACKLOG)
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen on {host}:{port}: {error.strerror}; choose another port with --port or PORT"
            ) from error
        yield listener


def main() -> int:
    """Settings from the environment, then `run`."""
    follow_parent(sys.argv[1:])
    try:
        return run(load_settings(None, os.environ))
    except ConfigurationError as error:
        sys.stderr.write(f"dats-rag query: {error}\n")
        return EXIT_CONFIGURATION


if __name__ == "__main__":
    sys.exit(main())
