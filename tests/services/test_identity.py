"""Who is calling, what that allows, and how much of it: over a replica whose keys lie in a real ledger."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from office import Office, token
from rig import BODY_LIMIT_BYTES, Rig, eventually
from structlog.testing import capture_logs

from dats_common.adapters.sql.identity import open_key_store
from dats_common.clients.errors import RAGForbidden, RAGTooMany, RAGUnauthenticated
from dats_common.clients.rag import RAGClient
from dats_common.contracts.topology import COMMANDS_QUEUE
from dats_common.domain.access import Caller
from dats_common.domain.keys import PlainKey
from dats_common.errors import ConfigurationError, LedgerUnavailable, TooManyRequests
from dats_common.records import StoredKey
from dats_common.settings import Settings
from services.query.gate import OPEN_PATHS, PROBE_PATHS, RateLimits
from services.query.identity import Seldom
from services.query.limits import HttpLimits
from services.query.routes import router
from services.query.wiring import require_safe_exposure

QUERY = {"query": "a report with totals"}


@pytest.fixture
async def office(rig: Rig, tmp_path: Path) -> AsyncIterator[Office]:
    async with open_key_store(f"sqlite:///{tmp_path / 'ledger.db'}") as keys:
        yield Office(rig, keys)


@pytest.fixture
async def replica(office: Office) -> AsyncIterator[httpx.AsyncClient]:
    async with office.replica() as client:
        yield client


async def search(client: httpx.AsyncClient, *credentials: tuple[str, str], **narrowing: Any) -> httpx.Response:
    headers = [("content-type", "application/json"), *credentials]
    return await client.post("/api/v1/query", content=json.dumps({**QUERY, **narrowing}), headers=headers)


def by_key(key: object) -> tuple[str, str]:
    return "X-API-Key", str(key)


def by_bearer(credential: object) -> tuple[str, str]:
    return "Authorization", f"Bearer {credential}"


def shown(response: httpx.Response) -> list[str]:
    assert response.status_code == 200, response.text
    return sorted(source["artifact_id"] for source in response.json()["sources"])


def assert_problem(response: httpx.Response, status: int) -> str:
    """Its detail."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["status"] == status
    return str(response.json().get("detail", ""))


# -------------------------------------------------------------------------------------------------------- credentials


async def test_every_path_that_is_not_named_open_asks_for_credentials(replica: httpx.AsyncClient) -> None:
    routes = [(method, route.path) for route in router.routes for method in route.methods]  # type: ignore[attr-defined]
    routes += [("GET", "/nope"), ("GET", "/api/v1/health/"), ("GET", "//metrics"), ("POST", "/api/v1/QUERY")]
    asked = set()
    for method, path in routes:
        response = await replica.request(method, path)
        if path in OPEN_PATHS:
            assert response.status_code == 200, path
        else:
            assert "credentials are needed" in assert_problem(response, 401)
            assert response.headers["www-authenticate"].startswith("Bearer")
            asked.add(path)
    assert asked >= {"/api/v1/query", "/api/v1/embed", "/api/v1/embeddings/batch-invalidate", "/nope"}


async def test_a_key_is_taken_from_either_header_and_a_token_as_bearer_only(
    office: Office, replica: httpx.AsyncClient
) -> None:
    key = await office.key("reader")
    assert (await search(replica, by_key(key))).status_code == 200
    assert (await search(replica, by_bearer(key))).status_code == 200
    assert (await search(replica, by_key(key), by_bearer(key))).status_code == 200
    assert (await search(replica, by_bearer(token()))).status_code == 200
    assert (await search(replica, ("authorization", f"bearer {token()}"))).status_code == 200
    assert_problem(await search(replica, by_key(token())), 401)


async def test_two_different_credentials_are_refused_though_each_is_good(
    office: Office, replica: httpx.AsyncClient
) -> None:
    one, other = await office.key("reader"), await office.key("reader")
    for pair in (
        (by_key(one), by_bearer(other)),
        (by_key(one), by_key(other)),
        (by_bearer(token()), by_bearer(one)),
        (by_key(one), by_bearer(token())),
    ):
        assert "two different" in assert_problem(await search(replica, *pair), 401)


@pytest.mark.parametrize(
    "credential",
    [
        ("X-API-Key", ""),
        ("X-API-Key", "hunter2"),
        ("X-API-Key", "drk_aaaaaaaaaaaaaaaa_short"),
        ("X-API-Key", "drk_aaaaaaaaaaaaaaaa_" + "x" * 43),
        ("X-API-Key", "é" * 20),
        ("X-API-Key", "x" * 20_000),
        ("Authorization", ""),
        ("Authorization", "Bearer"),
        ("Authorization", "Bearer hunter2"),
        ("Authorization", "Bearer " + "x" * 20_000),
        ("Authorization", "Basic aHVudGVyMjpodW50ZXIy"),
        ("Authorization", "Bearer drk_aaaaaaaaaaaaaaaa_" + "x" * 43),
    ],
)
async def test_what_is_no_credential_of_ours_is_refused_and_not_quoted(
    replica: httpx.AsyncClient, credential: tuple[str, str]
) -> None:
    response = await replica.post(
        "/api/v1/query", json=QUERY, headers=[(credential[0].encode(), credential[1].encode())]
    )
    detail = assert_problem(response, 401)
    assert "hunter2" not in detail
    assert "xxx" not in detail


async def test_of_a_key_the_secret_counts(office: Office, replica: httpx.AsyncClient) -> None:
    key, other = await office.key("reader"), await office.key("reader")
    wrong = assert_problem(await search(replica, by_key(PlainKey(key.key_id, other.secret))), 401)
    unknown = assert_problem(await search(replica, by_key(PlainKey("a" * 16, key.secret))), 401)
    assert wrong == unknown, "whether a key exists is told to nobody"


async def test_a_revoked_key_is_refused_at_once_by_every_replica(office: Office) -> None:
    key = await office.key("reader")
    async with office.replica() as one, office.replica() as other:
        for client in (one, other):
            assert (await search(client, by_key(key))).status_code == 200
        await office.keys.revoke(key.key_id, actor="cli:test")
        for client in (one, other):
            assert "revoked" in assert_problem(await search(client, by_key(key)), 401)


async def test_an_expired_key_is_refused(office: Office, replica: httpx.AsyncClient) -> None:
    assert "expired" in assert_problem(await search(replica, by_key(await office.key("reader", valid_s=0.0))), 401)


async def test_with_the_ledger_away_nobody_is_let_in_and_probes_answer(office: Office) -> None:
    class Away:
        async def find(self, key_id: str) -> StoredKey | None:
            raise LedgerUnavailable("the ledger is away")

    key = await office.key("reader")
    away: Any = Office(office.rig, Away())  # type: ignore[arg-type]
    async with office.replica(authenticator=away.authenticator) as client:
        response = await search(client, by_key(key))
        assert_problem(response, 503)
        assert int(response.headers["retry-after"]) >= 1
        for path in sorted(PROBE_PATHS | {"/api/v1/health"}):
            assert (await client.get(path, headers=[by_key(key)])).status_code == 200


async def test_a_strangers_body_is_never_read(replica: httpx.AsyncClient) -> None:
    read = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal read
        for _ in range(100):
            read += 1
            yield b" " * 10_000

    headers = [("content-type", "application/json")]
    assert_problem(await replica.post("/api/v1/query", content=body(), headers=headers), 401)
    assert read == 0


async def test_health_gives_strangers_the_state_and_no_words(office: Office, replica: httpx.AsyncClient) -> None:
    office.rig.index.switch.away = True
    stranger = (await replica.get("/api/v1/health")).json()
    known = (await replica.get("/api/v1/health", headers=[by_key(await office.key("reader"))])).json()
    assert stranger["status"] == known["status"] == "unhealthy"
    assert "does not answer" in known["components"]["index"]["detail"]
    assert "does not answer" in known["rag_details"]
    assert {part["detail"] for part in stranger["components"].values()} == {""}
    assert stranger["rag_details"] == ""
    ready = await replica.get("/api/v1/health/ready")
    assert (ready.status_code, ready.json()["detail"]) == (503, "away: index")


# -------------------------------------------------------------------------------------------------------------- roles


def embed_body(**metadata: Any) -> dict[str, Any]:
    return {
        "content": "a report with totals",
        "metadata": {"artifact_id": "made-here", "project_id": "p", **metadata},
    }


CALLS: dict[str, tuple[str, str, Any]] = {
    "search": ("POST", "/query", QUERY),
    "for a user": ("POST", "/query", {**QUERY, "user_id": "somebody-else"}),
    "embed": ("POST", "/embed", embed_body()),
    "embed for all tenants": ("POST", "/embed", embed_body(scope="public")),
    "taint": ("DELETE", "/embeddings/a", None),
    "taint several": ("POST", "/embeddings/batch-invalidate", {"artifact_ids": ["a"]}),
}
MAY = {
    "reader": {"search"},
    "service": {"search", "for a user"},
    "ingest": {"embed", "taint", "taint several"},
    "admin": {*CALLS},
    "": set[str](),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("role", MAY)
async def test_a_role_allows_what_the_table_says_and_nothing_else(office: Office, role: str, call: str) -> None:
    method, path, body = CALLS[call]
    async with office.replica(embed_wait_s=0.01) as client:
        headers = [by_key(await office.key(*filter(None, [role]), user_id="me"))]
        response = await client.request(method, f"/api/v1{path}", json=body, headers=headers)
    if call in MAY[role]:
        assert response.status_code in (200, 202), response.text
    else:
        assert_problem(response, 403)


async def test_a_role_in_a_token_counts_as_in_a_key(replica: httpx.AsyncClient) -> None:
    assert_problem(await search(replica, by_bearer(token(roles=["ingest"]))), 403)
    assert_problem(await search(replica, by_bearer(token(roles=[]))), 403)
    assert_problem(await search(replica, by_bearer(token()), user_id="bob"), 403)
    assert (await search(replica, by_bearer(token()), user_id="alice")).status_code == 200


@pytest.fixture
async def world(office: Office) -> None:
    """Artifacts of two tenants, named for who may see them."""
    rig = office.rig
    rig.validated("default-all", "a report with totals")
    rig.validated("default-red", "a report with totals", tags=["red"])
    rig.validated("default-q", "a report with totals", project_id="q")
    rig.validated("alices", "a report with totals", scope="user", user_id="alice")
    rig.validated("acme-all", "a report with totals", tenant_id="acme")
    rig.validated("acme-red", "a report with totals", tenant_id="acme", tags=["red"])
    rig.validated("public", "a report with totals", tenant_id="acme", scope="public")
    ids = ("default-all", "default-red", "default-q", "alices", "acme-all", "acme-red", "public")
    async with rig.writer():
        await rig.all_live(*ids)


@pytest.mark.usefixtures("world")
async def test_a_key_sees_its_tenant_its_projects_and_its_tags(office: Office, replica: httpx.AsyncClient) -> None:
    async def sees(narrowing: dict[str, Any] | None = None, *roles: str, **grant: Any) -> list[str]:
        key = await office.key(*(roles or ("reader",)), **grant)
        return shown(await search(replica, by_key(key), top_k=100, max_tokens=10_000, **(narrowing or {})))

    everything = ["default-all", "default-q", "default-red", "public"]
    assert await sees() == everything
    assert await sees(tags=frozenset()) == ["default-all", "default-q", "public"]
    assert await sees(tags=frozenset({"red"}), project_ids=frozenset({"p"})) == ["default-all", "default-red", "public"]
    assert await sees(project_ids=frozenset({"q"})) == ["default-q", "public"]
    assert await sees(user_id="alice") == sorted(["alices", *everything])
    assert await sees({"user_id": "alice"}, "service") == sorted(["alices", *everything])
    assert await sees({"user_tags": ["red"]}, tags=frozenset()) == ["default-all", "default-q", "public"]
    assert await sees(tenant_ids=("acme",), tags=frozenset()) == ["acme-all", "public"]
    assert await sees({"tenant_id": "acme"}, tenant_ids=("default", "acme")) == ["acme-all", "acme-red", "public"]


@pytest.mark.usefixtures("world")
async def test_a_token_sees_as_its_claims_say(replica: httpx.AsyncClient) -> None:
    async def sees(**claims: Any) -> list[str]:
        return shown(await search(replica, by_bearer(token(**claims)), top_k=100, max_tokens=10_000))

    assert await sees() == ["alices", "default-all", "default-q", "public"]
    assert await sees(sub="bob", tags=["red"]) == ["default-all", "default-q", "default-red", "public"]
    assert await sees(sub="bob", tenant_id="acme", tags=["*"]) == ["acme-all", "acme-red", "public"]


async def test_a_tenant_outside_of_the_key_is_forbidden_on_every_call(
    office: Office, replica: httpx.AsyncClient
) -> None:
    headers = [by_key(await office.key("service", "ingest", "admin", tenant_ids=("acme", "other")))]
    for tenant, status in (("default", 403), ("acme ", 403), ("ACME", 403), (None, 422)):
        named = {} if tenant is None else {"tenant_id": tenant}
        for call in (
            replica.post("/api/v1/query", json={**QUERY, **named}, headers=headers),
            replica.post("/api/v1/embed", json=embed_body(**named), headers=headers),
            replica.delete("/api/v1/embeddings/a", params=named, headers=headers),
            replica.post("/api/v1/embeddings/batch-invalidate", json={"artifact_ids": ["a"], **named}, headers=headers),
        ):
            assert "tenant" in assert_problem(await call, status)
    assert (await office.rig.ledger.counts()).tainted_artifacts == 0


@pytest.mark.usefixtures("world")
async def test_a_taint_reaches_the_callers_tenant_only(office: Office, replica: httpx.AsyncClient) -> None:
    key = await office.key("ingest", tenant_ids=("default", "acme"))
    ids = ["default-all", "acme-all"]
    removed = await replica.delete("/api/v1/embeddings/acme-all", params={"tenant_id": "acme"}, headers=[by_key(key)])
    assert removed.json()["removed_chunks"] == 1
    assert await office.rig.live(*ids) == {"default-all"}
    body = {"artifact_ids": ids, "tenant_id": "acme", "cascade_id": "casc"}
    await replica.post("/api/v1/embeddings/batch-invalidate", json=body, headers=[by_key(key)])
    assert await office.rig.live(*ids) == {"default-all"}
    newest = (await office.keys.audit(limit=1))[0]
    assert (newest.actor, newest.tenant_id, newest.cascade_id) == (f"key:{key.key_id}", "acme", "casc")


async def test_a_key_of_some_projects_embeds_into_those_only(office: Office) -> None:
    async with office.replica(embed_wait_s=0.01) as client:
        headers = [by_key(await office.key("ingest", project_ids=frozenset({"p"})))]
        assert_problem(await client.post("/api/v1/embed", json=embed_body(project_id="q"), headers=headers), 403)
        assert (await client.post("/api/v1/embed", json=embed_body(), headers=headers)).status_code == 202


# ------------------------------------------------------------------------------------------------------------- limits


async def test_one_request_too_many_in_a_minute_is_429_for_that_key_alone(office: Office) -> None:
    busy, calm, own = (
        await office.key("reader"),
        await office.key("reader"),
        await office.key("reader", requests_per_minute=1),
    )
    async with office.replica(requests_per_minute=3) as client:
        for _ in range(3):
            assert (await search(client, by_key(busy))).status_code == 200
        refused = await search(client, by_key(busy))
        assert "3 requests a minute" in assert_problem(refused, 429)
        assert 1 <= int(refused.headers["retry-after"]) <= 20
        assert (await search(client, by_key(calm))).status_code == 200
        assert (await search(client, by_key(own))).status_code == 200
        assert_problem(await search(client, by_key(own)), 429)
        for _ in range(5):
            assert (await client.get("/api/v1/health", headers=[by_key(busy)])).status_code == 200


@dataclass
class Hands:
    """A clock that tests move."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def calls_taken(rates: RateLimits, caller: Caller, tries: int) -> int:
    taken = 0
    for _ in range(tries):
        try:
            rates.take(caller)
            taken += 1
        except TooManyRequests:
            pass
    return taken


@pytest.mark.parametrize("limit", [1, 7, 60, 600])
def test_a_bucket_holds_a_minutes_requests_and_refills_evenly(limit: int) -> None:
    clock = Hands()
    rates = RateLimits(requests_per_minute=limit, clock=clock)
    caller = Caller("key:a", ("default",), frozenset())
    assert calls_taken(rates, caller, limit + 5) == limit
    with pytest.raises(TooManyRequests) as caught:
        rates.take(caller)
    clock.now += caught.value.retry_after_s + 1e-3
    assert calls_taken(rates, caller, 5) == 1, "refused tries cost nothing, and the wait was the right one"
    clock.now += 1e6
    assert calls_taken(rates, caller, limit + 5) == limit


def test_ever_new_callers_and_subjects_take_a_bounded_place() -> None:
    clock = Hands()
    rates = RateLimits(requests_per_minute=60, clock=clock)
    for number in range(30_000):
        rates.take(Caller(f"jwt:{number}", ("default",), frozenset()))
    assert len(rates._full_at) <= 10_000
    seldom = Seldom(interval_s=60.0, clock=clock)
    assert sum(seldom.allows(number) for number in range(5_000)) == 1000
    clock.now += 61.0
    assert seldom.allows("next minute")
    assert not seldom.allows("next minute")


async def test_more_requests_than_it_takes_at_once_are_503_and_probes_get_through(office: Office) -> None:
    limits = HttpLimits(body_bytes=BODY_LIMIT_BYTES, body_timeout_s=10.0, concurrent_requests=2)
    key = by_key(await office.key("reader"))
    async with office.replica(http=limits, deadline_s=30.0) as client:
        office.rig.index.switch.hold()
        held = [asyncio.create_task(search(client, key)) for _ in range(2)]
        searches = office.rig.index.switch

        async def both_wait() -> bool:
            return searches.reached.is_set() and "2 requests" in (await search(client, key)).text

        await eventually(both_wait)
        refused = await search(client, key)
        assert_problem(refused, 503)
        assert refused.headers["retry-after"] == "1"
        for path in sorted(PROBE_PATHS - {"/api/v1/health/ready"}):
            assert (await client.get(path)).status_code == 200
        # An error budget is reckoned from it, although no route was looked up.
        counted = re.search(
            r'rag_http_requests_total{route="/api/v1/query",status="503"} (\S+)', (await client.get("/metrics")).text
        )
        assert counted
        assert float(counted[1]) >= 1
        searches.open.set()
        assert {response.status_code for response in await asyncio.gather(*held)} == {200}
        assert (await search(client, key)).status_code == 200


async def test_what_waits_for_the_writer_leaves_places_to_searches_and_withdrawals(office: Office) -> None:
    limits = HttpLimits(body_bytes=BODY_LIMIT_BYTES, body_timeout_s=10.0, concurrent_requests=4)
    key = by_key(await office.key("reader", "ingest"))

    async def embed(client: httpx.AsyncClient, artifact: str) -> httpx.Response:
        body = {"content": "a report with totals", "metadata": {"artifact_id": artifact, "project_id": "p"}}
        return await client.post("/api/v1/embed", json=body, headers=[key])

    async with office.replica(http=limits, deadline_s=30.0, embed_wait_s=30.0) as client:  # and no writer
        waiting = [asyncio.create_task(embed(client, name)) for name in ("a", "b", "c")]

        async def are_three() -> bool:
            return await office.rig.bus.depth(COMMANDS_QUEUE) == len(waiting)

        try:
            await eventually(are_three)
            assert "3 requests" in assert_problem(await embed(client, "d"), 503)
            assert (await search(client, key)).status_code == 200
            office.rig.index.switch.hold()
            searching = asyncio.create_task(search(client, key))
            await office.rig.index.switch.reached.wait()
            assert_problem(await search(client, key), 503)
            withdrawn = await client.delete("/api/v1/embeddings/a", headers=[key])
            assert withdrawn.status_code == 200, withdrawn.text
            office.rig.index.switch.open.set()
            assert (await searching).status_code == 200
        finally:
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_body_that_trickles_in_is_cut_off(office: Office) -> None:
    limits = HttpLimits(body_bytes=BODY_LIMIT_BYTES, body_timeout_s=0.05, concurrent_requests=2)

    async def trickle() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    key = await office.key("reader")
    async with office.replica(http=limits) as client:
        for _ in range(3):  # and its place is free again
            async with asyncio.timeout(10.0):
                response = await client.post("/api/v1/query", content=trickle(), headers=[by_key(key)])
            assert "did not arrive" in assert_problem(response, 408)


# -------------------------------------------------------------------------------------------------------------- audit


async def test_a_taint_over_http_says_who_in_the_audit_and_in_the_log(office: Office) -> None:
    key = await office.key("ingest")
    with capture_logs() as logs:
        async with office.replica() as client:
            await client.delete("/api/v1/embeddings/a", headers=[by_key(key)])
            await client.delete("/api/v1/embeddings/b", headers=[by_bearer(token(roles=["ingest"], sub="bob"))])
    newest = await office.keys.audit(limit=2)
    assert [(entry.actor, entry.artifact_ids) for entry in newest] == [
        ("jwt:bob", ("b",)),
        (f"key:{key.key_id}", ("a",)),
    ]
    said = [line for line in logs if line["event"] == "artifacts_tainted"]
    assert [(line["actor"], line["tenant_id"], line["artifact_count"]) for line in said] == [
        (f"key:{key.key_id}", "default", 1),
        ("jwt:bob", "default", 1),
    ]
    assert str(key) not in str(logs)
    assert key.secret not in str(logs)


async def test_refused_uses_are_counted_all_and_told_once(office: Office) -> None:
    key, other = await office.key("reader"), await office.key("reader")
    with capture_logs() as logs:
        async with office.replica() as client:
            for _ in range(20):
                await search(client, by_key(PlainKey(key.key_id, other.secret)))
            for letter in "abcdefghij":
                await search(client, by_key(PlainKey(letter * 16, other.secret)))
                await search(client, by_bearer("no-token-" + letter))
            await office.keys.revoke(key.key_id, actor="cli:test")
            await search(client, by_key(key))
            counted = (await client.get("/metrics")).text
    assert sorted(await office.actions()) == [
        ("key_refused", "revoked"),
        ("key_refused", "wrong_secret"),
        ("key_revoked", ""),
    ]
    told = [(line["reason"], line.get("key_id")) for line in logs if line["event"] == "credentials_refused"]
    assert told == [("wrong_secret", key.key_id), ("unknown_key", None), ("token", None), ("revoked", key.key_id)]
    for line in ('reason="wrong_secret"} 20.0', 'reason="unknown_key"} 10.0', 'reason="token"} 10.0'):
        assert f"rag_credentials_refused_total{{{line}" in counted


async def test_the_last_use_of_a_key_is_remembered(office: Office, replica: httpx.AsyncClient) -> None:
    key = await office.key("reader")
    await search(replica, by_key(key))

    async def remembered() -> bool:
        found = await office.keys.find(key.key_id)
        return found is not None and found.last_used_at is not None

    await eventually(remembered)


# ------------------------------------------------------------------------------------------------------------- client


async def test_the_clients_errors_tell_no_credentials_from_not_allowed_and_from_too_many(office: Office) -> None:
    key = await office.key("ingest", tenant_ids=("default", "acme"), requests_per_minute=4)
    async with office.replica() as http:
        transport = http._transport

        def client(**credentials: Any) -> RAGClient:
            return RAGClient("http://replica/api/v1", timeout=5.0, transport=transport, **credentials)

        for credentials in ({}, {"api_key": "drk_wrong"}, {"token": "wrong"}):
            with pytest.raises(RAGUnauthenticated) as unknown:
                await client(**credentials).query("q")
            assert unknown.value.status == 401
            assert unknown.value.problem is not None
        with pytest.raises(RAGForbidden) as forbidden:
            await client(api_key=str(key)).query("q", tenant_id="acme")
        assert not isinstance(forbidden.value, RAGUnauthenticated)
        for _ in range(3):
            assert (await client(api_key=str(key)).invalidate("a b/c", tenant_id="acme")).artifact_id == "a b/c"
        with pytest.raises(RAGTooMany) as many:
            await client(api_key=str(key)).invalidate("a", tenant_id="acme")
        assert (many.value.retry_after_s or 0) > 5


# -------------------------------------------------------------------------------------------------------------- start


def settings(host: str, mode: str = "off", *, allow_open: bool = False) -> Settings:
    return Settings.model_validate({"server": {"host": host}, "auth": {"mode": mode, "allow_open": allow_open}})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org", ""])
def test_without_authentication_an_address_that_others_reach_stops_the_start(host: str) -> None:
    with pytest.raises(ConfigurationError, match="DATS_AUTH_MODE=required"):
        require_safe_exposure(settings(host))
    require_safe_exposure(settings(host, "required"))
    require_safe_exposure(settings(host, allow_open=True))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_on_this_machine_alone_it_may_be_off(host: str) -> None:
    require_safe_exposure(settings(host))


async def test_the_openapi_document_says_what_is_open_and_how_to_authenticate(replica: httpx.AsyncClient) -> None:
    document = (await replica.get("/openapi.json")).json()
    assert document["components"]["securitySchemes"].keys() == {"ApiKey", "Bearer"}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert bool(operation["security"]) == (path not in OPEN_PATHS), path
            assert "401" in operation["responses"], path
