"""HTTP from threads, for a process without HTTP of its own: its metrics, and what probes ask."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from threading import Thread
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from dats_common.errors import ConfigurationError

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication


@contextmanager
def served(app: WSGIApplication, host: str, port: int, *, remedy: str) -> Iterator[None]:
    """Answer on this port, each connection in a thread.

    Raises: ConfigurationError: the port is taken; it ends with `remedy`.
    """
    try:
        server = make_server(host, port, app, server_class=_Server, handler_class=_Silent)
    except OSError as error:
        raise ConfigurationError(f"cannot serve metrics on {host}:{port}: {error.strerror}; {remedy}") from error
    thread = Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=5.0)


class _Server(ThreadingMixIn, WSGIServer):
    """A probe that waits for a hanging loop must not keep others waiting."""

    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """Whoever went away or sent nothing is no trouble of ours; all else is told."""
        if not isinstance(sys.exception(), TimeoutError | ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Silent(WSGIRequestHandler):
    """A line in the log for every probe helps nobody."""

    timeout = 3.0
    """For a request to arrive: each connection has a thread, and anyone may open one."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class names it so
        """Nothing."""
