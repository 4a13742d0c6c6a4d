"""What several commands take, and how they end."""

from __future__ import annotations

import asyncio
import getpass
import os
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from dats_common.settings import Settings, load_settings

EXIT_NO = 1
EXIT_USAGE = 2
EXIT_UNAVAILABLE = 69  # EX_UNAVAILABLE of sysexits.h
EXIT_CONFIGURATION = 78  # EX_CONFIG
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells have it

Json = Annotated[bool, typer.Option("--json", help="One JSON document for machines.")]
Data = Annotated[Path | None, typer.Option("--data", help="Data directory of the embedded engines [DATS_DATA_DIR].")]
Config = Annotated[Path | None, typer.Option("--config", help="YAML settings [DATS_CONFIG].")]
PortOption = Annotated[int | None, typer.Option("--port", min=1, max=65535, help="HTTP port [PORT].")]
Tenant = Annotated[str | None, typer.Option("--tenant", help="For a key of several tenants.")]
Url = Annotated[str, typer.Option("--url", help="The service's API.")]
DEFAULT_URL = "http://127.0.0.1:8000/api/v1"

T = TypeVar("T")


def settings_for(*, config: Path | None = None, data: Path | None = None, port: int | None = None) -> Settings:
    """The settings with a command's options on top. Raises: ConfigurationError."""
    options = {"DATS_DATA_DIR": str(data) if data else "", "PORT": str(port) if port else ""}
    return load_settings(config, {**os.environ, **{name: value for name, value in options.items() if value}})


def own_key() -> str | None:
    """The key that commands send to the service, from the settings. Raises: ConfigurationError."""
    return settings_for().auth.api_key.get_secret_value() or None


def actor() -> str:
    """Who runs the command, for the audit."""
    return f"cli:{getpass.getuser()}"


def run_until_signal(work: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
    """Run `work` and cancel it in order on SIGTERM or SIGINT. Returns None when it was cancelled so."""

    async def guarded() -> T | None:
        task = asyncio.ensure_future(work())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
        try:
            return await task
        except asyncio.CancelledError:
            return None

    return asyncio.run(guarded())
