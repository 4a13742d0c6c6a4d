"""The fleet whose writers die and hang at named points, and a record of all that was asked and shown meanwhile."""

from __future__ import annotations

import asyncio
import os
import sys
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aio_pika
import httpx
from fleet import CONFIGURATION, Child, Fleet, Producer, eventually, producer, search, shown, text

from crash.link import Link
from crash.points import EXIT_CODE, POLL_S, Armed, Control, Mode, Point, Work
from dats_common.contracts.topology import DEAD_LETTERS_QUEUE

WRITERS = 3
"""One to be hit, one to take over, and one that is started again meanwhile."""

ARTIFACTS = 3
PAST_S = 200.0  # Versions are so old that no taint of today can leave them in the skew.
READ_PAUSE_S = 0.02
RECENT = 40
HIT_TIMEOUT_S = 40.0
SETTLED_TIMEOUT_S = 60.0

WATCHDOG_OFF = "  watchdog_s: 3600\n"

_TESTS = Path(__file__).parents[2]


@dataclass
class Record:
    """What was promised over the whole run, by artifact, with the point at which each was in flight."""

    stay: dict[str, str] = field(default_factory=dict)
    gone: dict[str, str] = field(default_factory=dict)
    poison: dict[str, str] = field(default_factory=dict)
    hits: list[str] = field(default_factory=list)
    acknowledged: dict[str, float] = field(default_factory=dict)
    """When the answer to an HTTP taint came, by the monotonic clock."""
    looks: list[tuple[float, frozenset[str]]] = field(default_factory=list)
    """Each query's start and the artifacts it showed."""
    windows: list[str] = field(default_factory=list)
    """Points at which the index still offered an artifact whose taint was acknowledged: unguarded, that is stale."""


class Scene:
    """The fleet, its observers, and the ways to hurt it."""

    def __init__(self, fleet: Fleet, links: list[Link], control: Control, team: Producer, client: httpx.AsyncClient):
        self.fleet = fleet
        self.team = team
        self.record = Record()
        self._links = links
        self._control = control
        self._client = client
        self._watched: list[str] = []

    # ------------------------------------------------------------------------------------------------- one point

    async def hurt(self, point: Point, mode: Mode) -> None:
        """Lead a writer to the point, have another take over, and let the first one go on or come back.

        Raises: TimeoutError: nobody came by, or nobody took over.
        """
        label = f"{point} ({mode})"
        word = uuid.uuid4().hex[:10]
        ids = [f"{word}-{number}" for number in range(ARTIFACTS)]
        self._watched = ids
        await self._standby_is_up()
        await self._prepare(point.work, ids)
        self._control.arm(Armed(point.hook, mode, "" if point.work is Work.TAKE_OVER else word))
        await self._begin(point.work, word, ids, label)
        victim, link = await self._hit()
        self.record.hits.append(label)
        if mode is Mode.EXIT:
            assert await asyncio.to_thread(victim.wait) == EXIT_CODE
        else:
            link.cut()
        await self._meanwhile(point.work, ids, label)
        witness = f"{word}-witness"
        await self._validated(witness, label)
        await self.fleet.all_live([witness])  # somebody else works
        if mode is Mode.BLOCK:
            link.mend()
            self._control.release()
            await _until(lambda: self._control.resumed(victim.process.pid), what=f"{label}: going on")
        self._repair()

    async def _prepare(self, work: Work, ids: list[str]) -> None:
        if work in (Work.REPLACE, Work.TAINT):
            for artifact in ids:
                await self.team.validated(artifact, text(artifact), at=time.time() - 2 * PAST_S)
            await self.fleet.all_live(ids)
            await self._seen(ids)

    async def _begin(self, work: Work, word: str, ids: list[str], label: str) -> None:
        match work:
            case Work.EMBED | Work.REPLACE:
                for artifact in ids:
                    await self._validated(artifact, label)
            case Work.TAINT:
                for artifact in ids:
                    await self.team.tainted(artifact, at=time.time())
                self.record.gone |= dict.fromkeys(ids, label)
            case Work.POISON:
                self.record.poison[word] = label
                broken = aio_pika.Message(f'{{"{word}'.encode(), delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
                await self.team.exchange.publish(broken, "task.validated")
            case Work.RETRY:
                self._control.fail_once(ids[0])
                await self._validated(ids[0], label)
            case Work.TAKE_OVER:
                await self._displace(ids, label)

    async def _displace(self, ids: list[str], label: str) -> None:
        """Close one writer's connections after the other's: with the active one's gone, another takes over."""
        for link, artifact in zip(self._links, ids, strict=True):
            link.cut()
            await self._validated(artifact, label)

            async def decided(one: str = artifact) -> bool:
                return self._control.hit_by is not None or bool(await self.fleet.live([one]))

            await eventually(decided, what=label)
            link.mend()
            if self._control.hit_by is not None:
                return

    async def _meanwhile(self, work: Work, ids: list[str], label: str) -> None:
        """While the writer is dead or stands still: a taint over HTTP for what it was about to make visible."""
        match work:
            case Work.EMBED:
                await self._taint(ids[-1], label)
            case Work.POISON | Work.RETRY:
                await self._validated(ids[1], label)
            case _:
                return

    async def _taint(self, artifact: str, label: str) -> None:
        response = await self._client.delete(f"/api/v1/embeddings/{artifact}")
        assert response.status_code == 200, response.text
        self.record.acknowledged[artifact] = time.monotonic()
        self.record.stay.pop(artifact)
        self.record.gone[artifact] = label
        if await self.fleet.indexed([artifact]):
            self.record.windows.append(label)

    async def _validated(self, artifact: str, label: str) -> None:
        self.record.stay[artifact] = label
        content = text(artifact) + " Second edition."
        await self.team.validated(artifact, content, at=time.time() - PAST_S)

    async def _hit(self) -> tuple[Child, Link]:
        await _until(lambda: self._control.hit_by is not None, what="the point", timeout_s=HIT_TIMEOUT_S)
        pid = self._control.hit_by
        return next(
            (child, link)
            for child, link in zip(self.fleet.writers, self._links, strict=True)
            if child.process.pid == pid
        )

    async def _standby_is_up(self) -> None:
        """Two writers that consume: one to be hit and one to take over."""

        def up() -> bool:
            return sum(child.is_running and child.said("consuming") > 0 for child in self.fleet.writers) >= 2

        await _until(up, what="two writers", timeout_s=SETTLED_TIMEOUT_S)

    def _repair(self) -> None:
        """Start again whoever died; it comes up while the next point is being hit."""
        for child in self.fleet.writers:
            if not child.is_running:
                child.log.rename(child.log.with_suffix(f".{uuid.uuid4().hex[:6]}.log"))
                child.start()

    # --------------------------------------------------------------------------------------------------- observing

    async def read(self) -> None:
        """Ask a replica for what is in flight and what has been tainted, again and again, until cancelled."""
        while True:
            ids = {*self._watched, *list(self.record.gone)[-RECENT:]}
            if ids:
                started = time.monotonic()
                answer = await search(self._client, *ids)
                self.record.looks.append((started, frozenset(shown(answer))))
            await asyncio.sleep(READ_PAUSE_S)

    async def _seen(self, ids: list[str]) -> None:
        await _until(lambda: any({*ids} <= seen for _, seen in self.record.looks[-3:]), what="the artifacts in answers")

    def stale(self) -> list[tuple[str, str, float]]:
        """Artifact, point, and by how many seconds a query started after the taint that it did not honour."""
        since = dict(self.record.acknowledged)
        for moment, (event, body) in zip(self.team.heard_at, self.team.heard, strict=True):
            if event == "embedding.invalidated":
                for artifact in body["data"]["artifact_ids"]:
                    since[artifact] = min(moment, since.get(artifact, moment))
        return [
            (artifact, self.record.gone[artifact], started - since[artifact])
            for started, ids in self.record.looks
            for artifact in ids & since.keys()
            if started > since[artifact]
        ]

    # ---------------------------------------------------------------------------------------------------- afterwards

    async def settled(self) -> None:
        """Wait until all writers are up, nothing is pending and the outbox is empty."""
        everyone = list(self.fleet.writers)
        await _until(
            lambda: all(child.is_running and child.said("consuming") > 0 for child in everyone),
            what="all writers",
            timeout_s=SETTLED_TIMEOUT_S,
        )
        await self.fleet.all_live(list(self.record.stay))

        async def nothing_left() -> bool:
            async with self.fleet.ledger() as ledger:
                pending = await ledger.fetchval("SELECT count(*) FROM rag_pending")
                unsent = await ledger.fetchval("SELECT count(*) FROM rag_outbox WHERE sent_at IS NULL")
            return not pending and not unsent

        await eventually(nothing_left, what="an empty outbox, nothing pending", timeout_s=SETTLED_TIMEOUT_S)

    async def shown_chunks(self) -> Counter[tuple[str, int]]:
        """How often each chunk of each artifact of the run is shown, and that it is the newest version's."""
        times: Counter[tuple[str, int]] = Counter()
        ids = [*self.record.stay, *self.record.gone]
        for start in range(0, len(ids), 50):
            answer = await search(self._client, *ids[start : start + 50])
            for source in answer["sources"]:
                assert "Second edition" in source["snippet"], source["artifact_id"]
                times[source["artifact_id"], source["chunk_index"]] += 1
        return times

    async def dead_letters(self) -> list[bytes]:
        """Bodies in the dead letters' queue; they stay there."""
        async with await aio_pika.connect(self.fleet.amqp_url, timeout=10) as connection:
            channel = await connection.channel()
            queue = await channel.get_queue(DEAD_LETTERS_QUEUE, ensure=False)
            found = []
            while (message := await queue.get(fail=False)) is not None:
                found.append(message.body)
            return found  # never acknowledged: the closed connection brings them back


async def _until(true: Callable[[], bool], *, what: str, timeout_s: float = SETTLED_TIMEOUT_S) -> None:
    async def done() -> bool:
        return true()

    await eventually(done, what=what, timeout_s=timeout_s, pause_s=POLL_S)


def crash_environment(fleet: Fleet, **settings: str) -> dict[str, str]:
    """A writer's environment in which `crash.writer` can be imported."""
    paths = [str(_TESTS / "faults"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**fleet.environment, "PYTHONPATH": os.pathsep.join(paths), **settings}


def add_crash_writer(fleet: Fleet, control: Path, **settings: str) -> Child:
    """One more writer, with points."""
    command = [sys.executable, "-m", "crash.writer", str(control)]
    log = fleet.base / f"writer-{len(fleet.writers)}.log"
    fleet.writers.append(Child(command, crash_environment(fleet, **settings), log))
    return fleet.writers[-1]


@asynccontextmanager
async def open_scene(base: Path, *, sql_url: str, amqp_url: str) -> AsyncIterator[Scene]:
    """An engine, a replica that is read without pause, and writers with points, each behind its own link."""
    fleet = Fleet(base, sql_url=sql_url, amqp_url=amqp_url)
    (base / "rag-service.yaml").write_text(CONFIGURATION.replace("events:\n", "events:\n" + WATCHDOG_OFF))
    directory = base / "control"
    directory.mkdir()
    async with AsyncExitStack() as stack:
        stack.callback(fleet.end)
        links = [await stack.enter_async_context(Link(amqp_url).serving()) for _ in range(WRITERS)]
        await asyncio.to_thread(fleet.start_engine)
        for link in links:
            add_crash_writer(fleet, directory, DATS_RABBITMQ_URL=link.url)
        replica = fleet.add_replica()
        await asyncio.to_thread(fleet.wait_until_up)
        team = await stack.enter_async_context(producer(amqp_url))
        client = await stack.enter_async_context(replica.client())
        scene = Scene(fleet, links, Control(directory), team, client)
        reading = asyncio.create_task(scene.read(), name="reader")
        try:
            yield scene
        finally:
            reading.cancel()
            (ended,) = await asyncio.gather(reading, return_exceptions=True)
            assert isinstance(ended, asyncio.CancelledError), ended


def missing(wanted: Iterable[str], there: Iterable[str], labels: dict[str, str]) -> dict[str, str]:
    """What is wanted and not there, with the point at which it was in flight."""
    return {each: labels[each] for each in {*wanted} - {*there}}
