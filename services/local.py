"""The whole fleet of one machine: the embedded engine, a writer and a query replica as child processes.

The children are the production services; only their settings differ. One that dies is started again.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import httpx

from dats_common.embedded.qdrant_edge import EngineProcess, open_engine_process
from dats_common.errors import ConfigurationError, Unavailable
from dats_common.settings import CONFIG_VARIABLE, Settings
from dats_common.settings.catalog import catalog
from dats_common.telemetry.logs import log
from services.backends import engine_dir
from services.lifeline import WITH_PARENT

_STOP_GRACE_S = 5.0  # beyond what a service itself may take to drain
_FIRST_RESTART_S, _LONGEST_RESTART_S = 0.5, 15.0
EXIT_CONFIGURATION = 78  # EX_CONFIG of sysexits.h: starting it again cannot help


@dataclass(frozen=True, slots=True)
class Fleet:
    """A running fleet."""

    base_url: str
    writer_metrics_url: str
    failed: asyncio.Future[str]

    async def run(self) -> None:
        """Until cancelled. Raises: ConfigurationError: a service refuses its settings."""
        raise ConfigurationError(await self.failed)


@asynccontextmanager
async def open_fleet(
    settings: Settings,
    *,
    environ: Mapping[str, str] = os.environ,
    config_file: Path | None = None,
    start_timeout_s: float = 90.0,
    log_file: Path | None = None,
) -> AsyncIterator[Fleet]:
    """Start everything that is not set to be elsewhere, and wait until it is healthy.

    Args:
        environ: what the settings were read from. The services read it too, and no variable of a setting besides: what
            is exported for a production fleet must not reach a demonstration's writer.
        config_file: what the settings were read from, if another than the environment says: the services read it too.
        log_file: where the services' logs go; by default to this process's stderr.

    Raises: ConfigurationError: a port or the data directory cannot be used, or a service refuses its settings.
        Unavailable: not healthy in time.
    """
    _require_writable(settings)
    _require_free_port(settings)
    async with AsyncExitStack() as stack:
        metrics_port = settings.telemetry.writer_metrics_port or _free_port_after(settings.server.port)
        environment = _environment(settings, environ, config_file, metrics_port=metrics_port)
        if settings.qdrant.is_embedded:
            started: asyncio.Future[EngineProcess] = asyncio.get_running_loop().create_future()
            engine_task = asyncio.create_task(_keep_engine(engine_dir(settings), started), name="engine")
            stack.push_async_callback(_cancel, engine_task)
            engine = await started
            environment |= {"QDRANT_HOST": engine.host, "QDRANT_GRPC_PORT": str(engine.port)}
        failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        grace_s = settings.events.drain_s + _STOP_GRACE_S
        output = stack.enter_context(log_file.open("ab")) if log_file else None
        for module in ("services.writer", "services.query"):
            service = _Service(module, environment, failed, output=output, grace_s=grace_s)
            stack.push_async_callback(_cancel, asyncio.create_task(service.keep_running(), name=module))
        here = _reached_at(settings.server.host)
        base_url = f"http://{here}:{settings.server.port}/api/v1"
        await _healthy(base_url, failed, timeout_s=start_timeout_s)
        yield Fleet(base_url, f"http://{here}:{metrics_port}/metrics", failed)


def _environment(
    settings: Settings, environ: Mapping[str, str], config_file: Path | None, *, metrics_port: int
) -> dict[str, str]:
    """What the services read: ours, with what this process was told otherwise."""
    names = {CONFIG_VARIABLE, *(name for setting in catalog() for name in (setting.env, setting.file_env) if name)}
    return {
        **{name: value for name, value in os.environ.items() if name not in names},
        **{name: value for name, value in environ.items() if name in names},
        **({CONFIG_VARIABLE: str(config_file.absolute())} if config_file else {}),
        "DATS_DATA_DIR": str(settings.data_dir),
        "PORT": str(settings.server.port),
        "DATS_WRITER_METRICS_PORT": str(metrics_port),
    }


def _reached_at(host: str) -> str:
    """Where this machine reaches what listens on `host`, as it stands in a URL."""
    here = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104  compared, not bound
    return f"[{here}]" if ":" in here else here


def _require_free_port(settings: Settings) -> None:
    """Else another fleet that serves there would be taken for this one."""
    host, port = settings.server.host, settings.server.port
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen on {host}:{port}: {error.strerror}; choose another port with --port or PORT"
            ) from error


def _free_port_after(port: int) -> int:
    """The writer's metrics go beside the replica's port, or anywhere if that one is taken."""
    for candidate in (port + 1, 0):
        with socket.socket() as probe, suppress(OSError, OverflowError):
            probe.bind(("127.0.0.1", candidate))
            return int(probe.getsockname()[1])
    raise ConfigurationError("no free port for the writer's metrics; set DATS_WRITER_METRICS_PORT")


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _keep_engine(data_dir: Path, started: asyncio.Future[EngineProcess]) -> None:
    """Run the engine until cancelled; one that dies is started again on the same port, where its clients find it."""
    port = 0
    while True:
        try:
            async with open_engine_process(data_dir, port=port) as engine:
                port = engine.port
                if not started.done():
                    started.set_result(engine)
                code = await engine.ended()
        except ConfigurationError as error:
            if not started.done():
                started.set_exception(error)
                return
            code = EXIT_CONFIGURATION
        log("up").warning("service_restarted", component="engine", exit_code=code, waited_s=_FIRST_RESTART_S)
        await asyncio.sleep(_FIRST_RESTART_S)


def _require_writable(settings: Settings) -> None:
    try:
        settings.data_dir.mkdir(parents=True, exist_ok=True)
        probe = settings.data_dir / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ConfigurationError(
            f"cannot write to the data directory {settings.data_dir}: {error.strerror}; choose another with --data"
        ) from error


class _Service:
    """A child process that is started again when it dies, ever more slowly."""

    def __init__(
        self,
        module: str,
        environment: Mapping[str, str],
        failed: asyncio.Future[str],
        *,
        output: BinaryIO | None,
        grace_s: float,
    ) -> None:
        self._module = module
        self._environment = environment
        self._failed = failed
        self._output = output
        self._grace_s = grace_s

    async def keep_running(self) -> None:
        """Until cancelled; then it is asked to stop, and made to if it does not."""
        pause_s = _FIRST_RESTART_S
        while True:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                self._module,
                WITH_PARENT,
                env=self._environment,
                stdin=asyncio.subprocess.PIPE,
                stderr=self._output,
            )
            try:
                code = await process.wait()
            except asyncio.CancelledError:
                await self._stop(process)
                raise
            if code == EXIT_CONFIGURATION:
                if not self._failed.done():
                    self._failed.set_result(f"{self._module} refused to start; its log says why")
                return
            log("up").warning("service_restarted", component=self._module, exit_code=code, waited_s=pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(_LONGEST_RESTART_S, pause_s * 2)

    async def _stop(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), self._grace_s)
        except TimeoutError:
            process.kill()
            await process.wait()


async def _healthy(base_url: str, failed: asyncio.Future[str], *, timeout_s: float) -> None:
    """Wait until the replica answers and a writer has reported."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + timeout_s
    async with httpx.AsyncClient(timeout=5.0, trust_env=False) as client:
        while not failed.done():
            try:
                health = (await client.get(f"{base_url}/health")).json()
                if health["status"] == "healthy":
                    return
                trouble = str({name: part["detail"] for name, part in health["components"].items() if part["detail"]})
            except (httpx.HTTPError, ValueError) as error:
                trouble = type(error).__name__
            if loop.time() > give_up_at:
                raise Unavailable(f"the fleet was not healthy within {timeout_s:.0f} s: {trouble}")
            await asyncio.sleep(0.1)
    raise ConfigurationError(failed.result())
