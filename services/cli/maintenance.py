"""Work on a fleet's stores from the command line."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dats_common.embedded.qdrant_edge import open_engine_process
from dats_common.errors import ConfigurationError
from dats_common.maintenance.reindex import Progress, reindex
from dats_common.settings import Settings
from services.backends import engine_dir, open_encoder, open_index, open_ledger, running_engine_port
from services.cli.console import Voice


def no_fleet(settings: Settings) -> str:
    """What to do when the data directory is not one that a fleet has used."""
    return (
        f"no fleet has run on {settings.data_dir.resolve()}: start one with `dats-rag up`, name its directory with "
        "--data, or set the servers' addresses"
    )


@asynccontextmanager
async def reachable(settings: Settings) -> AsyncIterator[Settings]:
    """Settings under which the index answers: an embedded engine that nobody runs is started for the time."""
    if not settings.qdrant.is_embedded:
        yield settings
        return
    try:
        running_engine_port(settings)
    except ConfigurationError:
        async with open_engine_process(engine_dir(settings)):
            yield settings
    else:
        yield settings


async def rebuild(settings: Settings, *, recreate: bool, voice: Voice) -> Progress | None:
    """`dats-rag reindex`. Raises: ConfigurationError: no fleet has made the embedded ledger."""
    if settings.sql.is_embedded and not (settings.data_dir / "ledger.db").exists():
        raise ConfigurationError(no_fleet(settings))
    async with (
        open_ledger(settings) as ledger,
        reachable(settings) as found,
        open_index(found) as index,
        open_encoder(settings, for_writer=True) as encoder,
    ):
        total = (await ledger.counts()).live_chunks
        with voice.progress("reindexing chunks", total) as bar:

            async def report(progress: Progress) -> None:
                bar.set(progress.chunks)

            return await reindex(ledger=ledger, index=index, encoder=encoder, recreate=recreate, report=report)
