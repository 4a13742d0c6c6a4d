"""Qdrant without a server: Qdrant's engine behind Qdrant's own gRPC, for one machine.

`serve` runs it on this loop, `run` is a whole process (`dats-rag engine`), `open_engine_process` a child that ends with
its parent. The child keeps the engine's panics, its hold on the interpreter's lock and its threads (an open shard hangs
in a forked process) away from the API. Outgrown it? Set QDRANT_HOST to a real server: the client's code stays the same.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dats_common.errors import ConfigurationError

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
DEFAULT_GRPC_PORT = 6334  # Qdrant's own.
MAX_MESSAGE_BYTES = 64 * 1024 * 1024  # 256 points of 1024 dimensions are about 1.5 MB; the rest is headroom.
MAX_CALLS = 512
"""Calls in flight; beyond it a caller is told RESOURCE_EXHAUSTED rather than kept in memory."""
STOP_GRACE_S = 5.0
"""How long calls in flight may go on once a stop is asked for."""
CHILD_STOP_TIMEOUT_S = 15.0  # The grace, and a flush on a slow disk.
EXIT_CONFIGURATION = 78  # EX_CONFIG of sysexits.h.


@contextlib.asynccontextmanager
async def serve(data_dir: Path, *, host: str = LOOPBACK, port: int = 0) -> AsyncIterator[int]:
    """Serve the data directory's collections; yields the port that was bound (`port=0`: any free one).

    Everything acknowledged is on disk when this ends.
    Raises: ConfigurationError: the directory is owned by another process, unwritable or broken; the port is taken.
    """
    import grpc

    from dats_common.embedded.ownership import owned
    from dats_common.embedded.qdrant_service import add_services
    from dats_common.embedded.qdrant_store import open_store

    with owned(data_dir) as ownership:
        async with open_store(data_dir) as store:
            options = [
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
                # The default lets a second process bind the same port, and the kernel deals the calls out to both.
                ("grpc.so_reuseport", 0),
            ]
            server = grpc.aio.server(options=options, maximum_concurrent_rpcs=MAX_CALLS)
            add_services(server, store)
            bound = _bind(server, host, port)
            await server.start()
            try:
                ownership.publish(port=bound)
                yield bound
            finally:
                await server.stop(STOP_GRACE_S)


def _bind(server: object, host: str, port: int) -> int:
    try:
        bound: int = server.add_insecure_port(f"{host}:{port}")  # type: ignore[attr-defined]
    except RuntimeError as error:
        bound = 0
        cause: RuntimeError | None = error
    else:
        cause = None
    if bound == 0:
        raise ConfigurationError(
            f"cannot listen on {host}:{port}: the port is taken or not allowed. "
            "Stop the process that has it, or choose another with --port (QDRANT_GRPC_PORT)."
        ) from cause
    return bound


def run(data_dir: Path, host: str = LOOPBACK, port: int = DEFAULT_GRPC_PORT) -> None:
    """Serve until SIGTERM or SIGINT, then flush and return. Raises: ConfigurationError."""
    asyncio.run(_serve_until_stopped(data_dir, host=host, port=port, child=False))


async def _serve_until_stopped(data_dir: Path, *, host: str, port: int, child: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    if child:
        # Ctrl-C reaches the whole terminal group; the parent stops us when it has finished its own work.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    else:
        loop.add_signal_handler(signal.SIGINT, stop.set)
    async with serve(data_dir, host=host, port=port) as bound:
        log.info("engine_started", extra={"port": bound})
        if child:
            parent = asyncio.create_task(_parent_gone(stop), name="engine-parent-watch")
            _say({"port": bound})
            await stop.wait()
            parent.cancel()
            await asyncio.gather(parent, return_exceptions=True)
        else:
            await stop.wait()
    log.info("engine_stopped")


async def _parent_gone(stop: asyncio.Event) -> None:
    """The parent holds the other end of our stdin and never writes: its end, however violent, is an end of file."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    try:
        await reader.read()
        stop.set()
    finally:
        transport.close()


def _say(message: dict[str, object]) -> None:
    """One line to the parent."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """The child's entry point; returns its exit status. A failed start is told to the parent on stdout."""
    parser = argparse.ArgumentParser(prog="python -m dats_common.embedded.qdrant_edge", description=__doc__)
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--host", default=LOOPBACK)
    parser.add_argument("--port", type=int, default=0)
    wanted = parser.parse_args(arguments)
    try:
        asyncio.run(_serve_until_stopped(wanted.data_dir, host=wanted.host, port=wanted.port, child=True))
    except ConfigurationError as error:
        _say({"error": str(error)})
        return EXIT_CONFIGURATION
    return 0


# ------------------------------------------------------------------------------------------------------------ parent


@dataclass(frozen=True, slots=True)
class EngineProcess:
    """A running engine and where it listens."""

    host: str
    port: int
    process: asyncio.subprocess.Process

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self.process.pid

    async def ended(self) -> int:
        """Wait until the child has ended, which it does unasked only when something is wrong; its exit status."""
        return await self.process.wait()


@contextlib.asynccontextmanager
async def open_engine_process(
    data_dir: Path, *, port: int = 0, start_timeout_s: float = 30.0
) -> AsyncIterator[EngineProcess]:
    """An engine in a child process of its own; stopped gracefully at the end, and by itself if this process dies.

    Raises: ConfigurationError: it cannot start (another owner, no permission, a taken port), or is not ready in time.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "dats_common.embedded.qdrant_edge",
        str(data_dir),
        "--port",
        str(port),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        try:
            async with asyncio.timeout(start_timeout_s):
                bound = await _first_word(process, data_dir)
                await _healthy(bound)
        except TimeoutError as error:
            raise ConfigurationError(
                f"the index engine on {data_dir} was not ready within {start_timeout_s:g} s; "
                "its log says why. A large index loads at about 60 000 chunks a second."
            ) from error
        yield EngineProcess(LOOPBACK, bound, process)
    finally:
        await _stop(process)


async def _first_word(process: asyncio.subprocess.Process, data_dir: Path) -> int:
    assert process.stdout is not None  # noqa: S101
    line = await process.stdout.readline()
    try:
        said = json.loads(line)
    except ValueError as error:
        raise ConfigurationError(
            f"the index engine on {data_dir} ended before it was ready; its log says why"
        ) from error
    if "error" in said:
        raise ConfigurationError(said["error"])
    return int(said["port"])


async def _healthy(port: int) -> None:
    import grpc
    from qdrant_client import grpc as qdrant

    # No proxy of the environment may stand between two processes of one machine.
    async with grpc.aio.insecure_channel(f"{LOOPBACK}:{port}", [("grpc.enable_http_proxy", 0)]) as channel:
        await qdrant.QdrantStub(channel).HealthCheck(qdrant.HealthCheckRequest(), wait_for_ready=True)  # type: ignore[no-untyped-call]


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
    try:
        await asyncio.wait_for(process.communicate(), CHILD_STOP_TIMEOUT_S)
    except TimeoutError:
        log.warning("engine_killed", extra={"pid": process.pid})
        process.kill()
        await process.wait()


if __name__ == "__main__":
    sys.exit(main())
