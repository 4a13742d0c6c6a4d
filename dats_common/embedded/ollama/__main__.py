"""`python -m dats_common.embedded.ollama NAME=FILE ...`: the facade as a process, until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from dats_common.embedded.ollama.serve import DEFAULT_PORT, DEFAULT_WINDOW_TOKENS, LOOPBACK, open_facade
from dats_common.errors import ConfigurationError

EXIT_CONFIGURATION = 78  # EX_CONFIG of sysexits.h.


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve the files that are named; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m dats_common.embedded.ollama", description=__doc__)
    parser.add_argument("models", nargs="+", metavar="NAME=FILE", type=_named_file)
    parser.add_argument("--host", default=LOOPBACK)
    parser.add_argument("--port", type=int, default=DEFAULT_PORT)
    parser.add_argument("--window", type=int, default=DEFAULT_WINDOW_TOKENS, help="tokens of prompt and answer")
    parser.add_argument("--threads", type=int, help="by default half of the cores")
    try:
        asyncio.run(_serve(parser.parse_args(arguments)))
    except ConfigurationError as error:
        sys.stderr.write(f"{parser.prog}: {error}\n")
        return EXIT_CONFIGURATION
    return 0


async def _serve(wanted: argparse.Namespace) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with open_facade(
        dict(wanted.models), host=wanted.host, port=wanted.port, window_tokens=wanted.window, threads=wanted.threads
    ) as facade:
        sys.stdout.write(f"Ollama's API is at {facade.base_url}\n")
        sys.stdout.flush()
        await stop.wait()


def _named_file(text: str) -> tuple[str, Path]:
    name, equals, file = text.partition("=")
    if not (name and equals and file):
        raise argparse.ArgumentTypeError(f"{text!r}: NAME=FILE is needed")
    return name, Path(file)


if __name__ == "__main__":
    sys.exit(main())
