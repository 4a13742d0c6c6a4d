"""`dats-rag dlq` and `dats-rag quarantine` on messages that really failed: a writer's loops over RabbitMQ and over the
laptop's queue, and the commands on the stores that it uses."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from fleet import bare_environment, purge
from rig import POISON, Encoder, Rig, eventually
from servers import RabbitServer
from typer.testing import CliRunner

from dats_common.adapters.rabbitmq import open_rabbitmq
from dats_common.adapters.sql.evidence import open_evidence
from dats_common.adapters.sql.identity import open_key_store
from dats_common.adapters.sql.ledger import open_ledger
from dats_common.adapters.sql.owners import open_owners
from dats_common.adapters.sqlite_bus import open_sqlite_bus
from dats_common.contracts.events import rfc3339
from dats_common.contracts.topology import (
    ARTIFACT_TAINTED,
    DEAD_LETTERS_QUEUE,
    PUBLISHED_QUEUE,
    QUEUES,
    TASK_VALIDATED,
    VALIDATED_QUEUE,
)
from dats_common.domain.taint import QuarantineReason
from dats_common.fingerprint import fingerprint
from services.cli.commands import app

pytestmark = [pytest.mark.slow]

DEADLINE_S = 60.0
SECOND = 1_000_000


class HealingEncoder(Encoder):
    """Breaks on `POISON`, until it is mended."""

    mended = False

    async def encode(self, texts: Sequence[str], *, kind: Literal["query", "document"]) -> Any:
        return await super().encode([text.replace(POISON, "") for text in texts] if self.mended else texts, kind=kind)


class OnARealQueue(Rig):
    """Nothing is away here: what fails, fails for its own."""

    async def _healthy(self) -> bool:
        return True


@dataclass
class World:
    """A writer's world on a real queue, and a way to call commands on it."""

    rig: Rig
    encoder: HealingEncoder
    data: Path
    environment: dict[str, str]

    @property
    def ledger_url(self) -> str:
        return f"sqlite:///{self.data / 'ledger.db'}"

    async def command(self, *arguments: str) -> tuple[int, Any]:
        """Exit status and the JSON that it printed (None for none). In a thread, with a loop of its own."""
        runner = CliRunner(env=self.environment)
        asked = [*arguments, "--json", "--data", str(self.data)]
        async with asyncio.timeout(DEADLINE_S):
            ended = await asyncio.to_thread(runner.invoke, app, asked)
        printed = [line for line in ended.stdout.splitlines() if line.startswith("{")]
        return ended.exit_code, json.loads(printed[-1]) if printed else None

    async def validated(self, artifact_id: str, content: str, *, at: int | None = None) -> None:
        data = {"artifact_id": artifact_id, "content": content, "metadata": {"project_id": "p"}}
        await self._publish(TASK_VALIDATED, data, at=at)

    async def tainted(self, artifact_id: str, *, at: int) -> None:
        await self._publish(ARTIFACT_TAINTED, {"artifact_id": artifact_id, "tenant_id": "default"}, at=at)

    async def _publish(self, event: str, data: dict[str, Any], *, at: int | None) -> None:
        body = {"data": data} if at is None else {"data": data, "time": rfc3339(at)}
        await self.rig.bus.publish(event, body, event_id="")

    async def dead_letters(self, count: int) -> None:
        async def there() -> bool:
            return await self.rig.bus.depth(DEAD_LETTERS_QUEUE) == count

        await eventually(there, timeout_s=DEADLINE_S)

    async def fallen(self, artifact_id: str) -> None:
        async def gone() -> bool:
            return await self.rig.live(artifact_id) == set()

        await eventually(gone, timeout_s=DEADLINE_S)

    async def told(self, event: str, count: int) -> None:
        """So many events of this type have been published, so what they tell is committed."""

        async def heard() -> bool:
            bodies = [json.loads(each) for each in await self.rig.bus.published()]
            return sum(body["type"] == event for body in bodies) >= count

        await eventually(heard, timeout_s=DEADLINE_S)

    async def idle(self) -> None:
        async def done() -> bool:
            return not any([await self.rig.bus.depth(queue.name) for queue in QUEUES])

        await eventually(done, timeout_s=DEADLINE_S)

    async def quarantined(self, count: int) -> None:
        async def there() -> bool:
            return (await self.rig.ledger.counts()).quarantined == count

        await eventually(there, timeout_s=DEADLINE_S)


@pytest.fixture(params=["sqlite", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    data = tmp_path / "data"
    data.mkdir()
    environment = {}
    if request.param == "sqlite":
        opening: Any = open_sqlite_bus(data / "bus.db")
    else:
        server: RabbitServer = request.getfixturevalue("rabbitmq")
        await purge(server.url)
        environment["DATS_RABBITMQ_URL"] = server.url
        opening = open_rabbitmq(server.url, connect_timeout_s=DEADLINE_S)
    url = f"sqlite:///{data / 'ledger.db'}"
    async with (
        opening as bus,
        open_ledger(url) as ledger,
        open_evidence(url) as evidence,
        open_owners(url) as owners,
    ):
        encoder = HealingEncoder()
        rig = OnARealQueue(ledger, evidence, owners, bus=bus, encoder=encoder)
        await rig.index.prepare(await fingerprint(encoder))
        yield World(rig, encoder, data, environment)


async def test_dead_letters_are_listed_shown_replayed_and_dropped(world: World) -> None:
    async with world.rig.writer(retry_attempts=1):
        await world.rig.bus.publish(TASK_VALIDATED, {"data": {"artifact_id": "broken"}}, event_id="")
        await world.dead_letters(1)
        await world.validated("poisoned", f"a {POISON} document")
        await world.dead_letters(2)

        status, listed = await world.command("dlq", "list")
        assert (status, listed["waiting"]) == (0, 2)
        broken, poisoned = listed["dead_letters"]
        assert "data.content" in broken["reason"]
        assert broken["attempts"] == 1
        assert poisoned["reason"].startswith("gave up after 2 attempts")
        assert (poisoned["source_queue"], poisoned["attempts"]) == (VALIDATED_QUEUE, 2)
        assert POISON not in json.dumps(listed)

        await world.dead_letters(2)
        status, shown = await world.command("dlq", "show", poisoned["id"])
        assert (status, "body" in shown) == (0, False)
        await world.dead_letters(2)
        status, shown = await world.command("dlq", "show", poisoned["id"], "--body")
        assert POISON in shown["body"]
        assert (await world.command("dlq", "show", "no-such-id"))[0] == 1

        # What still cannot succeed dies again, and is told by the time of its first death.
        await world.dead_letters(2)
        assert (await world.command("dlq", "replay", broken["id"]))[0] == 0
        await world.dead_letters(2)
        _, again = await world.command("dlq", "list")
        assert broken["first_died_at"] in {each["first_died_at"] for each in again["dead_letters"]}

        # What can by now, does.
        world.encoder.mended = True
        await world.dead_letters(2)
        status, replayed = await world.command("dlq", "replay", poisoned["id"])
        assert (status, replayed) == (0, {"replayed": [poisoned["id"]], "not_replayed": []})
        await world.rig.all_live("poisoned")
        await world.dead_letters(1)

        status, _ = await world.command("dlq", "drop", "--all")
        assert status == 2  # nobody was asked
        await world.dead_letters(1)
        status, dropped = await world.command("dlq", "drop", "--all", "--yes")
        assert (status, len(dropped["dropped"])) == (0, 1)
        await world.dead_letters(0)
    assert (await world.command("dlq", "replay", "gone"))[0] == 1
    assert (await world.command("dlq", "replay"))[0] == 2


async def test_what_the_skew_a_missing_time_and_an_equal_time_left_open_is_listed_and_readmitted(world: World) -> None:
    now = await world.rig.ledger.now()
    long_ago = now - 600 * SECOND
    async with world.rig.writer():
        await world.validated("equal", "the first content", at=long_ago)
        await world.rig.all_live("equal")
        await world.validated("equal", "the second content", at=long_ago)
        await world.tainted("skew", at=long_ago)
        await world.tainted("bare", at=long_ago)

        async def tombstoned() -> bool:
            return (await world.rig.ledger.counts()).tainted_artifacts == 2

        await eventually(tombstoned, timeout_s=DEADLINE_S)
        await world.validated("skew", "approved after the taint", at=long_ago + 10 * SECOND)
        await world.validated("bare", "approved at an unknown time")
        await world.quarantined(3)

        status, listed = await world.command("quarantine", "list")
        assert (status, listed["waiting"]) == (0, 3)
        reasons = {entry["artifact_id"]: entry["reason"] for entry in listed["entries"]}
        assert reasons == {
            "equal": QuarantineReason.EQUAL_TIME.value,
            "skew": QuarantineReason.WITHIN_SKEW.value,
            "bare": QuarantineReason.BARE_AFTER_TAINT.value,
        }
        assert "approved" not in json.dumps(listed)
        _, opened = await world.command("quarantine", "list", "--body", "--limit", "1")
        assert opened["entries"][0]["content"] == "the second content"

        entries = {entry["artifact_id"]: str(entry["entry"]) for entry in listed["entries"]}
        status, done = await world.command("quarantine", "readmit", *entries.values())
        assert (status, len(done["readmitted"])) == (0, 3)
        await world.rig.all_live("equal", "skew", "bare")
        assert (await world.command("quarantine", "list"))[1]["waiting"] == 0
        assert (await world.command("quarantine", "readmit", entries["bare"]))[0] == 1  # not open any more


async def test_a_taint_that_came_after_the_look_forbids_the_readmission(world: World) -> None:
    long_ago = await world.rig.ledger.now() - 600 * SECOND
    async with world.rig.writer():
        await world.tainted("a", at=long_ago)

        async def tombstoned() -> bool:
            return (await world.rig.ledger.counts()).tainted_artifacts == 1

        await eventually(tombstoned, timeout_s=DEADLINE_S)
        await world.validated("a", "approved after the taint", at=long_ago + 10 * SECOND)
        await world.quarantined(1)
        [entry] = (await world.command("quarantine", "list"))[1]["entries"]
        await world.tainted("a", at=long_ago + 20 * SECOND)

        async def told() -> bool:
            return await world.rig.bus.depth(PUBLISHED_QUEUE) == 3  # two taints and the quarantine, all told

        await eventually(told, timeout_s=DEADLINE_S)
        status, done = await world.command("quarantine", "readmit", str(entry["entry"]))
        assert status == 1
        assert "taint" in done["refused"][str(entry["entry"])]
        assert await world.rig.live("a") == set()


async def test_commands_on_a_directory_without_a_fleet_say_what_to_do(tmp_path: Path) -> None:
    for arguments in (["dlq", "list"], ["quarantine", "list"], ["sweep"], ["reindex"]):
        running = await asyncio.create_subprocess_exec(
            *[sys.executable, "-m", "services.cli", *arguments, "--data", str(tmp_path / "none")],
            env=bare_environment(),
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(DEADLINE_S):
            _, told = await running.communicate()
        assert running.returncode == 78
        assert b"dats-rag up" in told


async def test_a_wrong_taint_is_taken_back_by_naming_it_and_no_other_is(world: World) -> None:
    now = await world.rig.ledger.now()
    sent, between, again, later = (now - ago * SECOND for ago in (900, 700, 600, 300))
    async with world.rig.writer():
        await world.validated("wronged", "a good text", at=now - 1000 * SECOND)
        await world.rig.all_live("wronged")
        await world.tainted("wronged", at=sent)
        await world.fallen("wronged")

        status, found = await world.command("untaint", "wronged")
        assert (status, found["tainted_at"], found["size_chars"]) == (0, rfc3339(sent), len("a good text"))
        assert found["taints"] == 1
        assert "a good text" not in json.dumps(found)
        assert (await world.command("untaint", "wronged", "--body"))[1]["content"] == "a good text"
        taking_back = ("untaint", "wronged", "--reason", "QA looked again", "--tainted-at")

        # A taint that the operator did not see is not taken back, and neither is one from the future of what he saw.
        await world.tainted("wronged", at=again)
        await world.told("embedding.invalidated", 2)
        assert (await world.command(*taking_back, found["tainted_at"]))[0] == 1
        assert await world.rig.live("wronged") == set()

        # The one that he saw first would be taken back with the latest: he has to say that he knows of both.
        assert (await world.command("untaint", "wronged"))[1]["taints"] == 2
        assert (await world.command(*taking_back, rfc3339(again)))[0] == 1

        # One that was sent earlier and comes late is no later taint; it is one that he has not seen.
        await world.tainted("wronged", at=between)
        await world.told("embedding.invalidated", 3)
        assert (await world.command(*taking_back, rfc3339(again), "--taints", "2"))[0] == 1
        assert await world.rig.live("wronged") == set()
        assert (await world.command(*taking_back, rfc3339(again), "--taints", "3"))[0] == 0
        await world.rig.all_live("wronged")
        assert (await world.command(*taking_back, rfc3339(again), "--taints", "3"))[0] == 1  # it is live
        assert (await world.command("untaint", "wronged"))[0] == 1

        # The tombstones stand: a late copy of the first text stays away, a new taint takes it again.
        await world.validated("wronged", "a bad text", at=sent - SECOND)
        await world.tainted("wronged", at=later)
        await world.fallen("wronged")
    async with open_key_store(world.ledger_url) as keys:
        [entry] = [each for each in await keys.audit(limit=20) if each.action == "untaint"]
    assert (entry.artifact_ids, entry.reason, entry.actor.startswith("cli:")) == (("wronged",), "QA looked again", True)


async def test_what_was_approved_after_the_taint_wins_over_its_taking_back(world: World) -> None:
    now = await world.rig.ledger.now()
    await world.validated("a", "the old text", at=now - 1000 * SECOND)
    async with world.rig.writer():
        await world.rig.all_live("a")
        await world.tainted("a", at=now - 900 * SECOND)
        await world.fallen("a")
    # Nobody is there to index what QA approves, when the operator takes the taint back.
    await world.validated("a", "the mended text", at=now - 100 * SECOND)
    _, found = await world.command("untaint", "a")
    assert (await world.command("untaint", "a", "--reason", "r", "--tainted-at", found["tainted_at"]))[0] == 0
    async with world.rig.writer("another"):
        await world.told("embedding.completed", 2)

        async def served() -> bool:
            return [parts[0].text async for _, parts in world.rig.ledger.live_chunks()] == ["the mended text"]

        await eventually(served, timeout_s=DEADLINE_S)
        await world.idle()
        assert await served()
    assert (await world.command("untaint", "unknown"))[0] == 1
    assert (await world.command("untaint", "a", "--reason", "r"))[0] == 2
