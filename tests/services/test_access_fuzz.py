"""Random callers ask random questions: nothing that they may not see is in any answer, from any leg, by any index.

Each layer is held alone as well: what the index proposes is judged (its filter), and an index that proposes everything
of everybody is put under the service (the guard). `DATS_TEST_CALLERS=10000` runs the long version.
"""

from __future__ import annotations

import json
import os
import random
import re
import secrets
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
from access_world import (
    MODES,
    TENANTS,
    Artifact,
    Ask,
    Holder,
    make_artifacts,
    make_ask,
    make_holder,
    may_see,
    refusals,
    was_asked_for,
    write_refusals,
)
from index_engine import index_on, running_engine
from ledgers import fresh_database
from office import asks_for, token
from rig import Index, Rig

from dats_common.contracts.topology import COMMANDS_QUEUE
from dats_common.domain.keys import ENTROPY_BYTES, make_key
from dats_common.domain.model import EventTime, Taint
from dats_common.fingerprint import fingerprint
from dats_common.ports import KeyStore, Ledger
from dats_common.records import Candidate, StoredKey
from dats_common.settings import Settings
from services.backends import open_evidence, open_key_store, open_ledger, open_owners
from services.query.identity import Authenticator
from services.query.services import QueryServices

CALLERS = int(os.environ.get("DATS_TEST_CALLERS", "300"))
SEED = int(os.environ.get("DATS_TEST_SEED", "20260101"))
QUERIES_EACH = 3
ARTIFACTS = 240
LEAST_SHARE = 0.3
MARK = re.compile(r"zq(\d{4})zq")


# ------------------------------------------------------------------------------------------------------------ indexes


class Watched(Index):
    """Passes searches on and remembers what was proposed."""

    def __init__(self, real: Any) -> None:
        super().__init__()
        self.real = real
        self.proposed: list[Candidate] = []

    async def search(self, **asked: Any) -> list[Candidate]:
        found: list[Candidate] = await self.real.search(**asked)
        self.proposed += found
        return found


class Shameless(Index):
    """Proposes everything of everybody, best first, whoever asks."""

    def __init__(self, real: Index) -> None:
        super().__init__()
        self.real = real

    async def search(self, **asked: Any) -> list[Candidate]:
        scored = sorted(
            ((float(np.dot(point.dense, asked["dense"])), ref) for ref, point in self.real._points.items()),
            key=lambda pair: -pair[0],
        )
        return [
            Candidate(ref, min(1.0, max(0.0, score)), dense_rank=rank, sparse_rank=rank)
            for rank, (score, ref) in enumerate(scored[: asked["limit"]], start=1)
        ]


# -------------------------------------------------------------------------------------------------------------- world


@dataclass
class World:
    """Artifacts that are indexed, whose vectors are known, and the figures of a run.

    Attributes:
        keys: the replica's; `office` is the operator's, who makes them.
        guard_alone: the index filters nothing, so only access is judged and not what a request asked for.
    """

    rig: Rig
    writing: Ledger
    keys: KeyStore
    office: KeyStore
    artifacts: list[Artifact]
    vectors: npt.NDArray[np.float32]
    watched: Watched | None = None
    guard_alone: bool = False
    seen: Counter[str] = field(default_factory=Counter)

    def authenticator(self, services: QueryServices) -> Authenticator:
        return asks_for(self.keys, services)

    @asynccontextmanager
    async def replica(self, index: Any) -> AsyncIterator[httpx.AsyncClient]:
        async with self.rig.replica(
            authenticator=self.authenticator, index=index, deadline_s=30.0, embed_wait_s=0.001
        ) as client:
            yield client

    async def holder(self, rng: random.Random) -> tuple[Holder, dict[str, str]]:
        """Somebody, and the header that says so."""
        is_token = rng.random() < 0.5
        holder = make_holder(rng, is_token=is_token)
        if is_token:
            claims: dict[str, Any] = {"sub": holder.user, "tenant_ids": list(holder.tenants)}
            claims |= {} if holder.projects is None else {"project_ids": sorted(holder.projects)}
            claims |= {"roles": sorted(holder.roles), "tags": ["*"] if holder.tags is None else sorted(holder.tags)}
            return holder, {"Authorization": f"Bearer {token(**claims)}"}
        key = make_key(secrets.token_bytes(ENTROPY_BYTES))
        stored = StoredKey(
            key.key_id,
            key.secret_hash,
            "fuzz",
            holder.tenants,
            holder.roles,
            user_id=holder.user,
            project_ids=holder.projects,
            tags=holder.tags,
        )
        await self.office.create(stored, valid_s=600, actor="cli:fuzz")
        return holder, {"X-API-Key": str(key)}

    async def attack(self, client: httpx.AsyncClient, *, callers: int) -> None:
        """Random questions of random callers; fails at the first leak."""
        rng = random.Random(SEED)
        for _ in range(callers):
            holder, headers = await self.holder(rng)
            for number in range(QUERIES_EACH):
                ask = make_ask(rng, holder, self.artifacts)
                await self._ask(client, headers, holder, ask)
                if number == 0:
                    await self._ask_for_an_answer(client, headers, holder, ask)
        self._assert_it_was_an_attack(callers=callers)

    async def _ask(self, client: httpx.AsyncClient, headers: dict[str, str], holder: Holder, ask: Ask) -> None:
        if self.watched:
            self.watched.proposed.clear()
        response = await client.post("/api/v1/query", json=ask.body, headers=headers)
        told = {int(number) for number in MARK.findall(response.text)}
        if refused := refusals(holder, ask.body):
            assert response.status_code in refused, (holder, ask.body)
            assert told == set(), (holder, ask.body)
            self.seen["refused"] += 1
            return
        assert response.status_code == 200, response.text
        allowed = {item.number for item in self.artifacts if may_see(holder, ask.body, item)}
        if not self.guard_alone:
            allowed = {
                item.number for item in self.artifacts if item.number in allowed and was_asked_for(ask.body, item)
            }
        assert told <= allowed, f"LEAK of {sorted(told - allowed)} to {holder} by {ask.body}"
        if self.watched:
            proposed = {(each.ref.key.tenant_id, each.ref.key.artifact_id) for each in self.watched.proposed}
            for item in self.artifacts:
                if (item.tenant, item.artifact_id) in proposed:
                    assert item.number in allowed or item.tainted, f"PROPOSED {item} to {holder} by {ask.body}"
        self._count(holder, ask, told)
        if ask.aimed_at.number in allowed and ask.body["max_tokens"] >= 1000 and ask.body["top_k"] >= 20:
            self.seen["aimed well"] += 1
            assert ask.aimed_at.number in told, f"LOST {ask.aimed_at} to {holder} by {ask.body}"

    async def _ask_for_an_answer(
        self, client: httpx.AsyncClient, headers: dict[str, str], holder: Holder, ask: Ask
    ) -> None:
        """Neither the answer nor the prompt has a word of what the caller may not see; and it can be read again."""
        self.rig.model.assigned.clear()
        named = {name: ask.body[name] for name in ("query", "tenant_id", "user_id", "user_tags") if name in ask.body}
        response = await client.post("/api/v1/answer", json=named, headers=headers)
        prompts = [message.content for assigned in self.rig.model.assigned for message in assigned.messages]
        told = {int(number) for text in (response.text, *prompts) for number in MARK.findall(text)}
        if refused := refusals(holder, named):
            assert (response.status_code in refused, told) == (True, set()), (holder, named)
            return
        assert response.status_code == 200, response.text
        allowed = {item.number for item in self.artifacts if may_see(holder, named, item)}
        assert told <= allowed, f"LEAK of {sorted(told - allowed)} to {holder} by {named}"
        asker = {name: named[name] for name in ("tenant_id", "user_id") if name in named}
        path = f"/api/v1/answers/{response.json()['id']}"
        again = await client.get(path, params=asker, headers=headers)
        assert (again.status_code, again.json()["status"]) == (200, "standing"), again.text
        self.seen["answers"] += 1
        self.seen["answers with sources"] += bool(told)

    def _count(self, holder: Holder, ask: Ask, told: set[int]) -> None:
        self.seen["answered"] += 1
        self.seen["with hits"] += bool(told)
        self.seen[ask.body["search_mode"]] += 1
        nearness = self.vectors @ self.vectors[ask.aimed_at.number]
        best = max((float(nearness[number]) for number in told), default=-1.0)
        self.seen["forbidden ranks better"] += any(
            nearness[item.number] > best and not item.tainted and not may_see(holder, ask.body, item)
            for item in self.artifacts
        )

    def _assert_it_was_an_attack(self, *, callers: int) -> None:
        """A fuzz that shows nothing to anybody would find no leak either."""
        answered = self.seen["answered"]
        print(json.dumps({"seed": SEED, "callers": callers, "queries": callers * QUERIES_EACH, **self.seen}))
        assert answered > callers * QUERIES_EACH * 0.5
        assert self.seen["with hits"] >= LEAST_SHARE * answered
        assert self.seen["forbidden ranks better"] >= LEAST_SHARE * answered
        assert self.seen["aimed well"] > 0
        assert self.seen["answers with sources"] >= LEAST_SHARE * self.seen["answers"] > 0
        assert min(self.seen[mode] for mode in MODES) > 0.2 * answered


@asynccontextmanager
async def open_world(sql_url: str) -> AsyncIterator[World]:
    """Everything indexed by a writer; the replica's ledger and keys act as a query service's."""
    settings = Settings.model_validate({"sql": {"url": sql_url}})
    artifacts = make_artifacts(random.Random(SEED), ARTIFACTS)
    async with (
        open_ledger(settings) as writing,
        open_ledger(settings, acting="query") as reading,
        open_key_store(settings) as office,
        open_key_store(settings, acting="query") as keys,
        open_evidence(settings, acting="query") as evidence,
        open_owners(settings, acting="query") as owners,
    ):
        rig = Rig(writing, evidence, owners)
        await rig.index.prepare(await fingerprint(rig.encoder))
        for item in artifacts:
            rig.validated(item.artifact_id, item.content, **item.metadata)
        async with rig.writer(batch_size=100):
            await rig.settled()
        for item in artifacts:
            if item.tainted:  # and its points stay in the index, for the guard to refuse
                taint = Taint(item.tenant, (item.artifact_id,), EventTime(), actor="cli:fuzz")
                await writing.taint(taint, skew_s=60.0)
        assert (await writing.counts()).live_artifacts == sum(not item.tainted for item in artifacts)
        vectors = await rig.encoder.encode([item.content for item in artifacts], kind="document")
        yield World(
            Rig(reading, evidence, owners, rig.bus, rig.index, rig.encoder), writing, keys, office, artifacts, vectors
        )


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def server(request: pytest.FixtureRequest) -> str | None:
    """A PostgreSQL server, or none."""
    return None if request.param == "sqlite" else request.getfixturevalue("postgres").url


@pytest.fixture
async def world(server: str | None, tmp_path: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        if server is None:
            url = f"sqlite:///{tmp_path / 'ledger.db'}"
        else:
            url = await stack.enter_async_context(fresh_database(server))
        yield await stack.enter_async_context(open_world(url))


pytestmark = [pytest.mark.slow, pytest.mark.timeout(max(300, CALLERS))]


async def test_no_caller_is_shown_or_even_proposed_what_is_not_theirs(world: World) -> None:
    world.watched = Watched(world.rig.index)
    async with world.replica(world.watched) as client:
        await world.attack(client, callers=CALLERS)


async def test_the_guard_alone_shows_no_caller_what_is_not_theirs(world: World) -> None:
    world.guard_alone = True
    async with world.replica(Shameless(world.rig.index)) as client:
        await world.attack(client, callers=CALLERS // 2)


@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
async def test_the_real_engine_proposes_to_no_caller_what_is_not_theirs(world: World) -> None:
    async with running_engine() as engine, index_on(engine) as index:
        await index.prepare(await fingerprint(world.rig.encoder))
        for points in world.rig.index.stored:
            await index.store(points)
        world.watched = Watched(index)
        async with world.replica(world.watched) as client:
            await world.attack(client, callers=CALLERS // 4)


async def test_no_caller_withdraws_or_sends_what_is_not_theirs(world: World) -> None:
    """Random taints and embeds: afterwards exactly what the oracle allowed has fallen, and only that was commanded."""
    rng = random.Random(SEED)
    standing = {(item.tenant, item.artifact_id) for item in world.artifacts if not item.tainted}
    commanded: list[tuple[str, str]] = []
    done: Counter[str] = Counter()
    async with world.replica(world.rig.index) as client:
        for _ in range(CALLERS // 3):
            holder, headers = await world.holder(rng)
            item = rng.choice(world.artifacts)
            named = {} if rng.random() < 0.4 else {"tenant_id": rng.choice((item.tenant, rng.choice(TENANTS)))}
            tenant = named.get("tenant_id", holder.tenants[0])
            call = rng.choice(("delete", "batch", "embed"))
            scope = rng.choice(("project", "public"))
            if call == "delete":
                response = await client.delete(f"/api/v1/embeddings/{item.artifact_id}", params=named, headers=headers)
            elif call == "batch":
                body: dict[str, Any] = {"artifact_ids": [item.artifact_id], **named}
                response = await client.post("/api/v1/embeddings/batch-invalidate", json=body, headers=headers)
            else:
                metadata = {"artifact_id": item.artifact_id, "project_id": item.project, "scope": scope, **named}
                body = {"content": item.content, "metadata": metadata}
                response = await client.post("/api/v1/embed", json=body, headers=headers)
            refused = write_refusals(holder, named.get("tenant_id"), call, item.project, scope)
            assert (response.status_code in refused) if refused else response.is_success, (holder, call, named)
            done[f"{call} {'refused' if refused else 'done'}"] += 1
            if not refused and call == "embed":
                commanded.append((tenant, item.artifact_id))
            elif not refused:
                standing.discard((tenant, item.artifact_id))
    assert min(done.values()) > 0.02 * sum(done.values()), done
    assert len(done) == 6
    sent = [json.loads(message.body)["data"] for message in world.rig.bus.queue(COMMANDS_QUEUE)]
    assert [(each["tenant_id"], each["artifact_id"]) for each in sent] == commanded
    live = {
        (generation.key.tenant_id, generation.key.artifact_id) async for generation, _ in world.writing.live_chunks()
    }
    assert live == standing
