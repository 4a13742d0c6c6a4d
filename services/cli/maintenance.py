"""Work on a fleet's stores from the command line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from dats_common.embedded.qdrant_edge import open_engine_process
from dats_common.errors import ConfigurationError
from dats_common.maintenance.drift import Swept, sweep_with_figures
from dats_common.maintenance.look_back import Replayed, replay_taints
from dats_common.maintenance.reindex import Progress, reindex
from dats_common.ports import Encoder, OperatorsIndex
from dats_common.settings import Settings
from services.backends import (
    engine_dir,
    open_bus,
    open_encoder,
    open_index,
    open_ledger,
    prepare_index,
    running_engine_port,
)
from services.cli.console import Voice
from services.cli.options import actor
from services.cli.position import Position, load_position, save_position


def no_fleet(settings: Settings) -> str:
    """What to do when the data directory is not one that a fleet has used."""
    return (
        f"no fleet has run on {settings.data_dir.resolve()}: start one with `dats-rag up`, name its directory with "
        "--data, or set the servers' addresses"
    )


def require_fleet(settings: Settings) -> None:
    """Raises: ConfigurationError: no fleet has made the embedded ledger."""
    if settings.sql.is_embedded and not (settings.data_dir / "ledger.db").exists():
        raise ConfigurationError(no_fleet(settings))


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


async def sweep_once(settings: Settings, *, voice: Voice) -> Swept:
    """`dats-rag sweep`. Raises: ConfigurationError; Unavailable."""
    require_fleet(settings)
    async with open_ledger(settings) as ledger, reachable(settings) as found, open_index(found) as index:
        with voice.progress("sweeping points", await index.count()) as bar:

            async def report(swept: Swept) -> None:
                bar.set(swept.looked_at)

            return await sweep_with_figures(ledger=ledger, index=index, report=report)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a rebuild wrote, the runs that it resumed included."""

    artifacts: int
    chunks: int
    resumed_after_chunks: int


async def rebuild(settings: Settings, *, recreate: bool, restart: bool, voice: Voice) -> Rebuilt:
    """`dats-rag reindex`. Raises: ConfigurationError; Unavailable."""
    require_fleet(settings)
    async with (
        open_ledger(settings) as ledger,
        reachable(settings) as found,
        open_index(found) as index,
        open_encoder(settings, for_writer=True) as encoder,
    ):
        path = settings.data_dir / "reindex.json"
        target = _target(settings, encoder)
        begun = None if restart else await asyncio.to_thread(load_position, path, target=target)
        if begun is not None and not await _goes_on(begun, recreate=recreate, index=index, encoder=encoder):
            begun = None
        if begun is not None:
            voice.note(f"going on after {begun.chunks} chunks that are rebuilt already; --restart begins anew")
        before = Progress(begun.artifacts, begun.chunks, begun.last) if begun else None
        recreated = recreate or (begun is not None and begun.recreated)
        done = before
        with voice.progress("reindexing chunks", (await ledger.counts()).live_chunks) as bar:

            async def report(progress: Progress) -> None:
                nonlocal done
                done = _sum(before, progress)
                last = progress.last
                position = Position(target, recreated, done.artifacts, done.chunks, last.tenant_id, last.artifact_id)
                await asyncio.to_thread(save_position, path, position)
                bar.set(done.chunks)

            await reindex(
                ledger=ledger,
                index=index,
                encoder=encoder,
                recreate=recreate and begun is None,
                after=begun.last if begun else None,
                report=report,
            )
        await asyncio.to_thread(path.unlink, missing_ok=True)
    resumed = begun.chunks if begun else 0
    return Rebuilt(done.artifacts, done.chunks, resumed) if done else Rebuilt(0, 0, resumed)


def _target(settings: Settings, encoder: Encoder) -> str:
    store = settings.qdrant
    where = "embedded" if store.is_embedded else store.url or f"{store.host}:{store.grpc_port}"
    return f"{where}/{store.collection}/{encoder.model}"


async def _goes_on(begun: Position, *, recreate: bool, index: OperatorsIndex, encoder: Encoder) -> bool:
    """Whether what the interrupted run wrote is still there, and is what is wanted now.

    An index that was lost since then lacks the last artifact. One that was tainted since is lacking too: then
    everything is written once more, which does no harm.
    """
    if recreate and not begun.recreated:
        return False
    await prepare_index(index, encoder)
    return bool(await index.generations([begun.last]))


def _sum(before: Progress | None, progress: Progress) -> Progress:
    if before is None:
        return progress
    return Progress(before.artifacts + progress.artifacts, before.chunks + progress.chunks, progress.last)


async def replay_forgotten_taints(settings: Settings, *, voice: Voice) -> Replayed:
    """`dats-rag replay-taints`. Raises: ConfigurationError; Unavailable."""
    require_fleet(settings)
    async with open_ledger(settings) as ledger, open_bus(settings, name="replay-taints", patient=False) as bus:
        with voice.progress("replaying taints", None) as bar:

            async def report(done: int, of: int) -> None:
                bar.set(done, of=of)

            return await replay_taints(
                ledger=ledger, bus=bus, skew_s=settings.events.skew_s, actor=actor(), report=report
            )
