"""A fleet in the middle of an upgrade: processes of the last release and of this one on one ledger, index and broker.

The last release's code comes from the repository's history (tests/releases.py); it runs beside this one's packages.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest
from fleet import Child, Fleet, Producer, Replica, create_database, names, producer, purge, search, shown, text
from releases import ReleaseMissing, check_out, last_release
from servers import PostgresServer, RabbitServer

pytestmark = [pytest.mark.rabbitmq, pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def old_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the last release's packages are; skipped where the history does not have them, also in CI."""
    directory = tmp_path_factory.mktemp("released") / "code"
    try:
        found = check_out(last_release(), directory)
    except ReleaseMissing as missing:
        pytest.skip(str(missing))
    print(f"the last release: {last_release().version}, by {found}")
    return directory


@pytest.fixture(scope="module")
def fleet(
    rabbitmq: RabbitServer, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    async def prepare() -> str:
        await purge(rabbitmq.url)
        return await create_database(postgres.url)

    started = Fleet(tmp_path_factory.mktemp("upgrade"), sql_url=asyncio.run(prepare()), amqp_url=rabbitmq.url)
    with Path(started.environment["DATS_CONFIG"]).open("a") as configuration:
        configuration.write("answers:\n  generator: extractive\n")
    try:
        started.start_engine()
        yield started
    finally:
        started.end()


class Releases:
    """Starts processes of one release or the other."""

    def __init__(self, fleet: Fleet, old_code: Path) -> None:
        self._fleet = fleet
        self.new = dict(fleet.environment)
        self._old = {**fleet.environment, "PYTHONPATH": str(old_code)}
        said = subprocess.run(
            [sys.executable, "-c", "import services; print(services.__file__)"],
            env=self._old,
            capture_output=True,
            text=True,
            check=True,
            cwd=fleet.base,
        )
        assert said.stdout.startswith(str(old_code)), "the old release's processes would run this one's code"

    async def writer(self, *, old: bool) -> Child:
        self._fleet.environment = self._old if old else self.new
        writer = self._fleet.add_writer()
        await asyncio.to_thread(self._fleet.wait_until_up)
        return writer

    async def replica(self, *, old: bool) -> Replica:
        self._fleet.environment = self._old if old else self.new
        replica = self._fleet.add_replica()
        await asyncio.to_thread(self._fleet.wait_until_up)
        return replica

    async def end(self, child: Child) -> None:
        """As an orchestrator ends it, and for good."""
        assert await asyncio.to_thread(child.stop) == 0, child.log.read_text()[-2000:]
        for children in (self._fleet.writers, self._fleet.replicas):
            if child in children:
                children.remove(child)  # type: ignore[arg-type]
        child.log.rename(child.log.with_suffix(f".{child.process.pid}.log"))  # its name will be another's


@asynccontextmanager
async def clients_of(*replicas: Replica) -> AsyncIterator[list[httpx.AsyncClient]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(replica.client()) for replica in replicas]


async def keeps_the_promise(team: Producer, replicas: Sequence[httpx.AsyncClient]) -> None:
    """What is approved is found, embedded and answered from on every replica, and what is tainted on none."""
    ids = names(3 + len(replicas))
    for each in ids[:2]:
        await team.validated(each, text(each))
    await team.validated(ids[2], " ".join([text(ids[2])] * 20))  # of several chunks
    await team.completed(*ids[:3])
    for client, each in zip(replicas, ids[3:], strict=True):
        body = {"content": text(each), "metadata": {"artifact_id": each, "project_id": "proj-1"}}
        embedded = await client.post("/api/v1/embed", json=body)
        assert (embedded.status_code, embedded.json()["status"]) == (200, "indexed"), embedded.text
    for client in replicas:
        found = await search(client, *ids)
        assert shown(found) == set(ids)
        assert len({source["chunk_index"] for source in found["sources"] if source["artifact_id"] == ids[2]}) > 1

    asked = {"query": f"What does the ledger report {ids[0]} describe?", "max_context_chunks": 20}
    answers = []
    for client in replicas:
        answer = await client.post("/api/v1/answer", json=asked)
        assert answer.status_code == 200, answer.text
        answers.append(answer.json())
    for client in replicas:
        for answer in answers:
            kept = await client.get(f"/api/v1/answers/{answer['id']}")
            assert kept.json()["status"] == "standing", kept.text

    await team.tainted(ids[1])
    await team.invalidated(ids[1])
    for client in replicas:
        assert shown(await search(client, *ids)) == set(ids) - {ids[1]}
    gone = {ids[1]}
    for client, each in zip(replicas, [ids[0], ids[2]], strict=False):
        assert (await client.delete(f"/api/v1/embeddings/{each}")).json()["removed_chunks"] >= 1
        gone.add(each)
        for other in replicas:
            assert shown(await search(other, *ids)) == set(ids) - gone
    cited = {citation["artifact_id"] for answer in answers for citation in answer["citations"]}
    assert ids[0] in cited
    for client in replicas:
        for answer in answers:
            kept = await client.get(f"/api/v1/answers/{answer['id']}")
            assert kept.json()["status"] == "withdrawn", kept.text


async def test_the_last_release_and_this_one_work_together_in_every_order_of_an_upgrade(
    fleet: Fleet, old_code: Path
) -> None:
    """The upgrade of docs/upgrading.md, step by step, then the way back."""
    releases = Releases(fleet, old_code)
    old_writer, old_replica = await releases.writer(old=True), await releases.replica(old=True)
    async with producer(fleet.amqp_url) as team:
        async with clients_of(old_replica) as only_old:
            await keeps_the_promise(team, only_old)

            # 1. The schema is brought up to date beside them. 2. The new writer waits, then takes over.
            migrated = subprocess.run(
                [sys.executable, "-m", "services.cli", "migrate"],
                env=releases.new,
                capture_output=True,
                check=False,
            )
            assert migrated.returncode == 0, migrated.stderr
            new_writer = await releases.writer(old=False)
            await releases.end(old_writer)
            await keeps_the_promise(team, only_old)

        # An old replica that is started again meanwhile finds the newer schema. 3. Replicas follow.
        await releases.end(old_replica)
        old_replica = await releases.replica(old=True)
        new_replica = await releases.replica(old=False)
        async with clients_of(old_replica, new_replica) as both:
            await keeps_the_promise(team, both)

            # The way back: the writer first again.
            await releases.writer(old=True)
            await releases.end(new_writer)
            await keeps_the_promise(team, both)


def test_a_repository_without_the_release_says_so(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    with pytest.raises(ReleaseMissing, match="fetch --unshallow --tags"):
        check_out(last_release(), tmp_path / "code", repository=tmp_path)
