"""The replica's HTTP face: bad input gets a clear answer, outages fail closed, and the guard has the last word."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import httpx
import jsonschema
import pytest
from rig import BODY_LIMIT_BYTES, LEDGER_AWAY, Index, Rig

from dats_common.adapters.memory_index import MemoryIndex
from dats_common.contracts.api import Problem
from dats_common.contracts.topology import COMMANDS_QUEUE
from dats_common.domain.access import LAPTOP
from dats_common.domain.fusion import LegWeights
from dats_common.domain.model import ArtifactKey, ChunkRef
from dats_common.fingerprint import fingerprint
from dats_common.maintenance.reindex import reindex
from dats_common.records import Candidate, SearchFilter
from dats_common.settings import load_settings
from services.query.engine import QueryEngine, Question
from services.query.wiring import fusion_rules

QUERY = {"query": "a report on invoices"}
EMBED = {"content": "a report on invoices", "metadata": {"artifact_id": "a", "project_id": "p"}}
SECRET = "hunter2secret"
"""Stands in bad input; no answer may repeat it."""


@pytest.fixture
async def replica(rig: Rig) -> AsyncIterator[httpx.AsyncClient]:
    async with rig.replica() as client:
        yield client


@pytest.fixture
async def indexed(rig: Rig) -> list[str]:
    """Three documents that are live."""
    ids = ["invoices", "orders", "payments"]
    for number, artifact in enumerate(ids):
        rig.validated(
            artifact,
            f"a report on {artifact} with totals and dates",
            tags=["finance", artifact],
            doc_type="report" if number else "table",
            domain=f"domain{number}",
            title=f"Title of {artifact}",
            provenance_id=f"prov-{number}",
        )
    async with rig.writer():
        await rig.all_live(*ids)
    return ids


def assert_problem(response: httpx.Response, status: int) -> Problem:
    """A problem document of this status that gives nothing away."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert "Traceback" not in response.text
    assert SECRET not in response.text
    problem = Problem.model_validate(response.json())
    assert problem.status == status
    assert problem.title
    return problem


async def post(client: httpx.AsyncClient, path: str, body: Any, **more: Any) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await client.post(f"/api/v1{path}", content=content, headers={"content-type": "application/json"}, **more)


async def ask(client: httpx.AsyncClient, query: str = "a report with totals", **more: Any) -> Any:
    response = await post(client, "/query", {"query": query, **more})
    assert response.status_code == 200, response.text
    return response.json()


def shown(answer: Any) -> list[str]:
    return [source["artifact_id"] for source in answer["sources"]]


# ---------------------------------------------------------------------------------------------------------- bad input


def raw(text: str) -> bytes:
    return text.encode()


def with_metadata(**changes: Any) -> dict[str, Any]:
    return {**EMBED, "metadata": {**EMBED["metadata"], **changes}}  # type: ignore[dict-item]


NOT_OBJECTS = {
    "not JSON": raw(f"not JSON {SECRET}"),
    "empty": b"",
    "NaN": raw(f'{{"query": NaN, "x": "{SECRET}"}}'),
    "Infinity": raw('{"query": "x", "top_k": Infinity}'),
    "duplicate keys": raw(f'{{"query": "{SECRET}", "query": "y"}}'),
    "an array": raw(f'["{SECRET}"]'),
    "invalid UTF-8": b'{"query": "\xff\xfe"}',
    "a byte order mark": b"\xef\xbb\xbf{}",
    "nested too deep": b"[" * 50_000 + b"]" * 50_000,
}

BAD_QUERIES = {
    "no query": {},
    "a number": {"query": 7},
    "empty": {"query": ""},
    "blank": {"query": "   "},
    "over 4 kB": {"query": SECRET * 400},
    "a lone surrogate": raw(f'{{"query": "{SECRET} \\ud800"}}'),
    "a null character": raw(f'{{"query": "{SECRET} \\u0000"}}'),
    "unknown search mode": {**QUERY, "search_mode": SECRET},
    "unknown filter": {**QUERY, "filters": {"tagz": [SECRET]}},
    "unknown key": {**QUERY, "topk": 5},
    "withdrawn content wanted": {**QUERY, "filters": {"exclude_tainted": False}},
    "no tokens": {**QUERY, "max_tokens": 99},
    "a token budget as text": {**QUERY, "max_tokens": "2000"},
    "too many tokens": {**QUERY, "max_tokens": 10_001},
    "top_k 0": {**QUERY, "top_k": 0},
    "top_k 101": {**QUERY, "top_k": 101},
    "no tag": {**QUERY, "filters": {"tags": []}},
    "ids as text": {**QUERY, "filters": {"artifact_ids": SECRET}},
    "too many ids": {**QUERY, "filters": {"artifact_ids": [f"a{n}" for n in range(1001)]}},
}

BAD_EMBEDS = {
    "no metadata": {"content": "a report on invoices"},
    "no artifact_id": {**EMBED, "metadata": {"project_id": "p"}},
    "no project_id": {**EMBED, "metadata": {"artifact_id": "a"}},
    "an id of 300 characters": with_metadata(artifact_id=SECRET + "x" * 300),
    "a number as id": with_metadata(artifact_id=7),
    "a null character in the id": with_metadata(artifact_id=f"{SECRET}\0"),
    "a line break in the id": with_metadata(artifact_id=f"{SECRET}\n"),
    "empty content": {**EMBED, "content": ""},
    "9 characters": {**EMBED, "content": "ninechars"},
    "blank content": {**EMBED, "content": " " * 20},
    "content over 1 MB": {**EMBED, "content": "x" * 1_000_001},
    "a null character": {**EMBED, "content": f"{SECRET} \0 and more"},
    "a lone surrogate": raw(json.dumps({**EMBED, "content": f"{SECRET} \ud800"})),
    "tags that are no list": with_metadata(tags=SECRET),
    "unknown scope": with_metadata(scope=SECRET),
    "scope user without a user": with_metadata(scope="user"),
    "verified by a word": with_metadata(verified="yes"),
}

BAD_BATCHES = {
    "no ids": {},
    "an empty list": {"artifact_ids": []},
    "text": {"artifact_ids": SECRET},
    "one bad id": {"artifact_ids": ["a", SECRET + "x" * 300]},
    "10,001 ids": {"artifact_ids": [f"a{number}" for number in range(10_001)]},
    "unknown key": {"artifact_ids": ["a"], "cascade": SECRET},
}

BAD = [
    *(pytest.param("/query", body, id=f"query: {name}") for name, body in NOT_OBJECTS.items()),
    *(pytest.param("/embed", body, id=f"embed: {name}") for name, body in NOT_OBJECTS.items()),
    *(pytest.param("/query", body, id=f"query: {name}") for name, body in BAD_QUERIES.items()),
    *(pytest.param("/embed", body, id=f"embed: {name}") for name, body in BAD_EMBEDS.items()),
    *(pytest.param("/embeddings/batch-invalidate", body, id=f"batch: {name}") for name, body in BAD_BATCHES.items()),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body"), BAD)
async def test_bad_input_is_refused_with_a_problem_that_quotes_nothing(
    rig: Rig, replica: httpx.AsyncClient, path: str, body: Any
) -> None:
    problem = assert_problem(await post(replica, path, body), 422)
    assert problem.detail, "what is wrong is said"
    assert rig.bus.queue(COMMANDS_QUEUE) == []
    assert (await rig.ledger.counts()).tainted_artifacts == 0


@pytest.mark.parametrize("framing", ["declared", "chunked"])
async def test_a_body_over_the_limit_is_refused_however_it_is_framed(replica: httpx.AsyncClient, framing: str) -> None:
    body = b" " * (BODY_LIMIT_BYTES + 1)

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 65_536):
            yield body[start : start + 65_536]

    content: Any = body if framing == "declared" else chunks()
    response = await replica.post("/api/v1/query", content=content, headers={"content-type": "application/json"})
    assert_problem(response, 413)


async def test_a_line_of_nearly_a_million_characters_is_indexed(rig: Rig) -> None:
    async with rig.writer(), rig.replica(embed_wait_s=15.0) as client:
        response = await post(client, "/embed", {**EMBED, "content": "word " * 200_000})
    assert response.status_code == 200, response.text
    assert response.json()["status"] == "indexed"
    assert response.json()["chunks"] > 100


@pytest.mark.parametrize(
    "artifact", ["with spaces", "src/a/b.py", "a//b", "ünïcode✓", "100%", "a?b#c", "a%2Fb", "x" * 256]
)
async def test_ids_with_spaces_and_slashes_are_one_id_on_every_route(rig: Rig, artifact: str) -> None:
    async with rig.writer(), rig.replica() as client:
        embedded = await post(client, "/embed", with_metadata(artifact_id=artifact))
        assert embedded.json()["artifact_id"] == artifact
        assert shown(await ask(client, filters={"artifact_ids": [artifact]})) == [artifact]
        removed = await client.delete(f"/api/v1/embeddings/{quote(artifact, safe='')}")
        assert removed.json() == {"artifact_id": artifact, "removed_chunks": 1, "status": "invalidated"}
        assert shown(await ask(client, filters={"artifact_ids": [artifact]})) == []


@pytest.mark.parametrize(
    ("path", "status"),
    [("x" * 300, 422), ("%00", 422), ("%20%20", 422), ("a%09b", 422), ("%FF", 422), ("a%C3%28b", 422), ("a%0Ab", 404)],
    ids=["300 characters", "nul", "blank", "a tab", "a stray byte", "a broken sequence", "a line break"],
)
async def test_an_id_in_a_path_that_is_no_id_is_refused(
    rig: Rig, replica: httpx.AsyncClient, path: str, status: int
) -> None:
    assert_problem(await replica.delete(f"/api/v1/embeddings/{path}"), status)
    assert (await rig.ledger.counts()).tainted_artifacts == 0


async def test_an_id_in_a_path_that_is_no_id_is_explained_as_one_in_a_body(replica: httpx.AsyncClient) -> None:
    problem = assert_problem(await replica.delete("/api/v1/embeddings/a%00b"), 422)
    assert [(each.field, each.message) for each in problem.errors] == [
        ("artifact_id", "control characters are not allowed")
    ]
    assert problem.detail == "artifact_id: control characters are not allowed"


@pytest.mark.parametrize("media_type", [None, "application/x-www-form-urlencoded", "text/plain; charset=utf-8", "json"])
@pytest.mark.parametrize("path", ["query", "embed", "embeddings/batch-invalidate"])
async def test_a_body_whose_header_does_not_say_json_is_refused_for_its_header(
    replica: httpx.AsyncClient, path: str, media_type: str | None
) -> None:
    headers = {"content-type": media_type} if media_type else {}
    problem = assert_problem(await replica.post(f"/api/v1/{path}", content=b"{}", headers=headers), 422)
    assert problem.detail == "Content-Type: the header must say application/json"


@pytest.mark.parametrize("media_type", ["application/json; charset=utf-8", "Application/JSON", "application/x+json"])
async def test_every_way_to_say_json_is_understood(
    replica: httpx.AsyncClient, indexed: list[str], media_type: str
) -> None:
    body = json.dumps({"query": "a report with totals"}).encode()
    response = await replica.post("/api/v1/query", content=body, headers={"content-type": media_type})
    assert response.status_code == 200, response.text


async def test_ten_thousand_ids_are_tainted_in_one_step(
    rig: Rig, replica: httpx.AsyncClient, indexed: list[str]
) -> None:
    ids = [*indexed, *(f"other-{number}" for number in range(9_997))]
    response = await post(replica, "/embeddings/batch-invalidate", {"artifact_ids": ids, "cascade_id": "c"})
    assert response.json() == {"invalidated": 10_000, "chunks_removed": 3, "cascade_id": "c"}
    assert shown(await ask(replica)) == []
    assert (await rig.ledger.counts()).tainted_artifacts == 10_000


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nope", 404), ("GET", "/api/v1/query/", 404), ("GET", "/api/v1/query", 405), ("PUT", "/metrics", 405)],
)
async def test_wrong_paths_and_methods_are_problems(
    replica: httpx.AsyncClient, method: str, path: str, status: int
) -> None:
    response = await replica.request(method, path)
    assert_problem(response, status)
    if status == 405:
        assert response.headers["allow"], "RFC 9110 section 15.5.6"


async def test_a_failure_of_our_own_is_a_problem_without_a_stack_trace(rig: Rig) -> None:
    class Broken(Index):
        async def search(self, **asked: Any) -> list[Candidate]:
            raise RuntimeError(SECRET)

    async with rig.replica(index=Broken()) as client:
        assert_problem(await post(client, "/query", QUERY), 500)


# ------------------------------------------------------------------------------------------------------------ outages


async def test_without_the_ledger_nothing_is_served(rig: Rig, indexed: list[str]) -> None:
    async with rig.replica(ledger=LEDGER_AWAY) as client:
        for response in (
            await post(client, "/query", QUERY),
            await post(client, "/embed", EMBED),
            await client.delete("/api/v1/embeddings/a"),
            await post(client, "/embeddings/batch-invalidate", {"artifact_ids": ["a"]}),
        ):
            problem = assert_problem(response, 503)
            assert int(response.headers["retry-after"]) >= 1
            assert "ledger" in problem.detail
        health = (await client.get("/api/v1/health")).json()
        assert health["status"] == "unhealthy"
        assert health["rag_ok"] is False
        ready = await client.get("/api/v1/health/ready")
        assert ready.status_code == 503
        assert (await client.get("/api/v1/health/live")).status_code == 200
        assert (await client.get("/metrics")).status_code == 200


async def test_a_ledger_that_goes_away_before_the_last_look_fails_the_query(rig: Rig, indexed: list[str]) -> None:
    class Fading(type(rig.ledger)):  # type: ignore[misc]
        async def still_live(self, refs: Any, principal: Any) -> Any:
            return await LEDGER_AWAY.still_live(refs, principal)

    async with rig.replica(ledger=Fading(rig.ledger._database)) as client:  # type: ignore[attr-defined]
        assert_problem(await post(client, "/query", {"query": "a report with totals"}), 503)


async def test_without_the_index_queries_fail_and_taints_work(rig: Rig, indexed: list[str]) -> None:
    async with rig.replica() as client:
        rig.index.switch.away = True
        response = await post(client, "/query", QUERY)
        assert_problem(response, 503)
        assert response.headers["retry-after"]
        removed = await client.delete("/api/v1/embeddings/invoices")
        assert removed.json()["removed_chunks"] == 1
        health = (await client.get("/api/v1/health")).json()
        assert health["lightrag"]["status"] == "unavailable"
        assert (await client.get("/api/v1/health/ready")).status_code == 503
        rig.index.switch.away = False
        assert "invoices" not in shown(await ask(client))


async def test_without_the_broker_queries_and_taints_work_and_embedding_is_refused(
    rig: Rig, indexed: list[str]
) -> None:
    async with rig.replica() as client:
        rig.bus.switch.away = True
        assert_problem(await post(client, "/embed", EMBED), 503)
        assert (await client.delete("/api/v1/embeddings/invoices")).status_code == 200
        assert sorted(shown(await ask(client))) == ["orders", "payments"]
        health = (await client.get("/api/v1/health")).json()
        assert health["status"] == "degraded"
        assert health["rag_ok"] is True
    assert rig.published("embedding.invalidated") == []
    rig.bus.switch.away = False
    await rig.relay.drain()
    assert [data["artifact_ids"] for data in rig.published("embedding.invalidated")] == [["invoices"]]


async def test_a_full_queue_is_429_and_without_a_writer_an_embed_is_queued(rig: Rig) -> None:
    async with rig.replica(queue_max_size=2, embed_wait_s=0.05) as client:
        for _ in range(2):
            accepted = await post(client, "/embed", EMBED)
            assert accepted.status_code == 202
            assert accepted.json()["status"] == "queued"
        full = await post(client, "/embed", EMBED)
        assert_problem(full, 429)
        assert int(full.headers["retry-after"]) >= 1
        async with rig.writer():
            await rig.all_live("a")  # accepted means durable


async def test_a_query_over_its_deadline_is_504(rig: Rig) -> None:
    rig.index.switch.hold()
    async with rig.replica(deadline_s=0.1) as client:
        assert_problem(await post(client, "/query", QUERY), 504)


async def test_the_outcome_of_an_embed_is_told(rig: Rig) -> None:
    async with rig.writer(), rig.replica() as client:
        for content in ("a report on invoices", "another report on invoices"):
            embedded = (await post(client, "/embed", {**EMBED, "content": content})).json()
            assert (embedded["status"], embedded["chunks"]) == ("indexed", 1)
            assert embedded["tokens"] == len(rig.encoder.token_spans(content))
        await client.delete("/api/v1/embeddings/a")
        again = (await post(client, "/embed", EMBED)).json()
        assert again["status"] == "indexed", "what the caller sends after its taint is new"
        assert shown(await ask(client, query="a report on invoices")) == ["a"]


async def test_a_name_of_code_is_found_before_its_near_twins(rig: Rig) -> None:
    names = [f"{verb}_{noun}_id" for verb in ("get", "set", "load") for noun in ("user", "order", "session", "token")]
    async with rig.writer(), rig.replica() as client:
        for name in (*names, *(f"{name}s" for name in names)):
            rig.validated(name, f"def {name}(value): return the id of the user, order, session or token of {name}")
        await rig.all_live(*names, *(f"{name}s" for name in names))
        for name in names:
            camel = "".join(part.title() for part in name.split("_"))
            for query in (name, f"where is {name} defined?", camel[0].lower() + camel[1:]):
                assert shown(await ask(client, query=query))[0] == name
            assert shown(await ask(client, query=f"{name}s"))[0] == f"{name}s"


async def test_a_title_finds_every_chunk_of_its_document_also_after_a_rebuild(rig: Rig) -> None:
    async with rig.writer(), rig.replica() as client:
        words = "\n\n".join(f"Paragraph {number} is about lodging, meals and trains. " * 12 for number in range(4))
        rig.validated("titled", words, title="Reimbursement policy")
        rig.validated("other", words.replace("trains", "planes"))
        await rig.all_live("titled", "other")
        question = {"query": "reimbursement policy", "search_mode": "keyword", "top_k": 20}
        before = await ask(client, **question)
        assert {*shown(before)} == {"titled"}
        assert len(shown(before)) > 1
        fingerprint_of_it = await fingerprint(rig.encoder)
        await rig.index.drop()
        await rig.index.prepare(fingerprint_of_it)
        assert shown(await ask(client, **question)) == []
        await reindex(ledger=rig.ledger, index=rig.index, encoder=rig.encoder)
        assert (await ask(client, **question))["sources"] == before["sources"]


async def test_one_word_of_a_title_makes_no_chunk_relevant(rig: Rig) -> None:
    async with rig.writer(), rig.replica() as client:
        rig.validated("titled", "Lodging is booked by the traveller.", title="Reimbursement policy")
        await rig.all_live("titled")
        for mode in ("hybrid", "keyword"):
            body = await ask(client, query="password policy", search_mode=mode)
            assert (body["sources"], body["metadata"]["no_context"]) == ([], True)
        assert shown(await ask(client, query="reimbursement policy lodging")) == ["titled"]


async def test_a_file_named_after_a_function_comes_after_the_one_that_holds_it(rig: Rig) -> None:
    async with rig.writer(), rig.replica() as client:
        rig.validated("holds", "config = parse_config(path)", domain="code-python")
        rig.validated("named", "what to do with a path", title="parse_config.py", domain="code-python")
        await rig.all_live("holds", "named")
        body = await ask(client, query="what does parse_config do with a path", domain="code-python")
        assert shown(body) == ["holds", "named"]


async def test_the_language_of_a_domain_moves_no_score_within_it(rig: Rig) -> None:
    async with rig.writer(), rig.replica() as client:
        rig.validated("zip", "dict(zip(keys, values))", domain="code-python")
        rig.validated("tour", "import this: the zen of python in python", domain="code-python")
        await rig.all_live("zip", "tour")

        async def scores(query: str, domain: str | None) -> list[tuple[str, float]]:
            body = await ask(client, query=query, domain=domain, search_mode="vector")
            return [(each["artifact_id"], each["relevance_score"]) for each in body["sources"]]

        without = await scores("zip keys and values", "code-python")
        assert without[0][0] == "zip"
        assert await scores("zip keys and values in Python", "code-python") == without
        assert await scores("zip keys and values in Python", None) != without


async def test_one_source_decides_whether_there_is_an_answer_and_the_rest_need_half_of_its_similarity(
    rig: Rig, indexed: list[str]
) -> None:
    found = await rig.index.generations([ArtifactKey("default", name) for name in indexed])
    refs = [ChunkRef(key, generation, 0) for key, (generation,) in sorted(found.items())]
    assert len(refs) == 3

    async def shown(
        *similarities: float, query: str = "zebra quokka", mode: str = "hybrid", top_k: int = 3, least: float = 0.0
    ) -> list[int]:
        """Positions of the candidates that are shown; the keywords have found them in their order."""

        class Proposes(MemoryIndex):
            async def search(self, **_: Any) -> list[Candidate]:
                return [
                    Candidate(ref, similarity, sparse_rank=rank, sparse_score=1.0 / rank)
                    for rank, (ref, similarity) in enumerate(zip(refs, similarities, strict=True), start=1)
                ]

        engine = QueryEngine(
            encoder=rig.encoder,
            index=Proposes(),
            ledger=rig.ledger,
            min_similarity=0.4,
            least_candidates=50,
            fusion=replace(fusion_rules(load_settings(None, {})), weights=LegWeights(0.0, 1.0)),
        )
        question = Question(query, mode, SearchFilter(LAPTOP), top_k=top_k, budget_tokens=1000, least_similarity=least)
        answer = await engine.retrieve(question)
        assert bool(answer.reason) == (not answer.hits)
        return [refs.index(hit.passage.ref) for hit in answer.hits]

    assert await shown(0.39, 0.39, 0.39) == []
    assert await shown(0.19, 0.2, 0.4) == [1, 2]
    assert await shown(0.3, 0.3, 0.5, top_k=1) == [0]
    assert await shown(0.3, 0.3, 0.5, top_k=1, least=0.4) == [2], "who would drop the others wants no place for them"
    assert await shown(0.2, 0.2, 0.4, top_k=1) == [0], "what answers may lie behind what is shown"
    assert await shown(0.1, 0.1, 0.1, query="totals", mode="vector") != [], "terms tell in every mode"


async def test_the_legs_weigh_as_the_request_s_domain_says(rig: Rig, indexed: list[str]) -> None:
    found = await rig.index.generations([ArtifactKey("default", name) for name in ("invoices", "orders")])
    close, worded = (ChunkRef(key, generation, 0) for key, (generation,) in sorted(found.items()))

    class Proposes(MemoryIndex):
        async def search(self, **_: Any) -> list[Candidate]:
            return [Candidate(close, 0.9, dense_rank=1), Candidate(worded, 0.5, 2, sparse_rank=1, sparse_score=5.0)]

    settings = load_settings(None, {})
    engine = QueryEngine(
        encoder=rig.encoder,
        index=Proposes(),
        ledger=rig.ledger,
        min_similarity=0.3,
        least_candidates=50,
        fusion=replace(fusion_rules(settings), by_domain=(("words", LegWeights(0.0, 1.0)),)),
    )
    assert fusion_rules(settings).weights_for("code-python") == LegWeights(0.92, 0.08)
    for domain, first in ((None, close), ("docs", close), ("words-only", worded)):
        where = SearchFilter(LAPTOP, domain=domain)
        answer = await engine.retrieve(Question("a report", "hybrid", where, top_k=2, budget_tokens=1000))
        assert answer.hits[0].passage.ref == first, domain


async def test_a_question_asked_again_is_not_encoded_again(
    replica: httpx.AsyncClient, rig: Rig, indexed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[str] = []
    encode = rig.encoder.encode

    async def counting(texts: Sequence[str], *, kind: Any) -> Any:
        encoded.extend(texts)
        return await encode(texts, kind=kind)

    monkeypatch.setattr(rig.encoder, "encode", counting)
    bodies = [await ask(replica, "invoice report") for _ in range(2)]
    assert bodies[0]["sources"] == bodies[1]["sources"] != []
    assert encoded == ["invoice report"]


# -------------------------------------------------------------------------------------------------------------- guard


def forged(artifact: str, *, generation: int, similarity: float = 0.99) -> Candidate:
    return Candidate(ChunkRef(ArtifactKey("default", artifact), generation, 0), similarity, dense_rank=1, sparse_rank=1)


async def test_what_the_index_still_proposes_of_a_tainted_artifact_is_never_shown(rig: Rig, indexed: list[str]) -> None:
    ((_, generations),) = (await rig.index.generations([ArtifactKey("default", "invoices")])).items()
    rig.index.forged = [forged("invoices", generation=each) for each in generations]
    async with rig.replica() as client:
        assert "invoices" in shown(await ask(client))
        rig.index.switch.away = True  # so that its points stay
        await client.delete("/api/v1/embeddings/invoices")
        rig.index.switch.away = False
        for mode in ("vector", "keyword", "hybrid"):
            answer = await ask(client, search_mode=mode)
            assert "invoices" not in shown(answer)
            assert "invoices" not in answer["context"]
        dropped = re.search(r"^rag_guard_dropped_candidates_total (\S+)", (await client.get("/metrics")).text, re.M)
    assert dropped is not None
    assert float(dropped[1]) >= 3, "an unguarded read would have shown it"


async def test_generations_that_never_existed_are_never_shown(rig: Rig, indexed: list[str]) -> None:
    rig.index.forged = [forged("invoices", generation=999), forged("nobody", generation=1)]
    async with rig.replica() as client:
        assert sorted(shown(await ask(client))) == sorted(indexed)


async def test_a_candidate_that_was_replaced_is_read_again_as_its_successor(rig: Rig) -> None:
    """The index answers from before the flip; the guard finds the successor live: one more round, never nothing."""
    rig.validated("a", "the old report on invoices", time="2026-01-01T00:00:00Z")
    async with rig.writer():
        await rig.all_live("a")

    class Late(Index):
        def __init__(self, real: Index, old: list[Candidate]) -> None:
            super().__init__()
            self._real, self._old = real, old

        async def search(self, **asked: Any) -> list[Candidate]:
            self.searches += 1
            return self._old if self.searches == 1 else await self._real.search(**asked)

    late = Late(rig.index, [forged("a", generation=1)])
    rig.validated("a", "the new report on invoices", time="2026-01-02T00:00:00Z")
    async with rig.writer():
        await rig.settled()
    async with rig.replica(index=late) as client:
        answer = await ask(client, query="report on invoices")
    assert "the new report" in answer["context"]
    assert "the old report" not in answer["context"]
    assert late.searches == 2


async def test_a_taint_between_guard_and_answer_is_still_kept(rig: Rig, indexed: list[str]) -> None:
    class Slow(type(rig.ledger)):  # type: ignore[misc]
        async def read(self, refs: Any, principal: Any) -> Any:
            found = await super().read(refs, principal)
            rig.tainted("invoices")
            async with rig.writer():
                await rig.settled()
            return found

    async with rig.replica(ledger=Slow(rig.ledger._database)) as client:  # type: ignore[attr-defined]
        assert "invoices" not in shown(await ask(client))


# ----------------------------------------------------------------------------------------------- budget, top_k, filters


async def test_the_token_budget_is_kept_and_top_k_bounds_the_sources(rig: Rig) -> None:
    ids = [f"a{number}" for number in range(12)]
    for artifact in ids:
        rig.validated(artifact, f"report {artifact} " + "with many words about invoices " * 10)
    async with rig.writer(), rig.replica() as client:
        await rig.all_live(*ids)
        small = await ask(client, query="report about invoices", max_tokens=200)
        large = await ask(client, query="report about invoices", max_tokens=10_000)
        three = await ask(client, query="report about invoices", max_tokens=10_000, top_k=3)
    assert small["tokens_used"] == len(rig.encoder.token_spans(small["context"])) <= 200
    assert 0 < len(small["sources"]) < len(large["sources"]) == 10
    assert len(three["sources"]) == 3
    assert shown(three) == shown(large)[:3]


@pytest.mark.parametrize(
    ("narrowing", "expected"),
    [
        ({"filters": {"tags": ["orders", "payments"]}}, ["orders", "payments"]),
        ({"filters": {"tags": ["nobody's"]}}, []),
        ({"filters": {"doc_type": "report"}}, ["orders", "payments"]),
        ({"filters": {"doc_type": ["table", "report"]}}, ["invoices", "orders", "payments"]),
        ({"filters": {"artifact_ids": ["orders"]}}, ["orders"]),
        ({"domain": "domain2"}, ["payments"]),
        ({"project_id": "p"}, ["invoices", "orders", "payments"]),
        ({"project_id": "other"}, []),
        ({"user_tags": ["invoices"]}, ["invoices"]),
        ({"filters": {"tags": ["finance"], "doc_type": "report"}, "domain": "domain1"}, ["orders"]),
        ({"filters": None}, ["invoices", "orders", "payments"]),
    ],
)
async def test_filters_narrow(
    replica: httpx.AsyncClient, indexed: list[str], narrowing: dict[str, Any], expected: list[str]
) -> None:
    for mode in ("vector", "keyword", "hybrid"):
        assert sorted(shown(await ask(replica, search_mode=mode, **narrowing))) == expected


async def test_unverified_content_is_shown_only_to_who_asks_for_it(rig: Rig, replica: httpx.AsyncClient) -> None:
    rig.validated("draft", "an unverified report with totals", verified=False)
    async with rig.writer():
        await rig.all_live("draft")
    assert shown(await ask(replica)) == []
    assert shown(await ask(replica, filters={"verified_only": False})) == ["draft"]


async def test_another_tenant_is_out_of_reach(rig: Rig, replica: httpx.AsyncClient, indexed: list[str]) -> None:
    assert_problem(await post(replica, "/query", {**QUERY, "tenant_id": "acme"}), 403)
    assert_problem(await post(replica, "/embeddings/batch-invalidate", {"artifact_ids": ["a"], "tenant_id": "x"}), 403)
    assert_problem(await post(replica, "/embed", with_metadata(tenant_id="acme")), 403)


async def test_an_answer_carries_spec_1_s_fields(replica: httpx.AsyncClient, indexed: list[str]) -> None:
    answer = await ask(replica, filters={"artifact_ids": ["invoices"]})
    assert answer["search_mode"] == "hybrid"
    assert {"vector_results": 1, "keyword_results": 1}.items() <= answer["metadata"].items()
    assert answer["metadata"]["latency_ms"] > 0
    (source,) = answer["sources"]
    assert source["provenance_id"] == "prov-0"
    assert 0 < source["relevance_score"] <= 1
    assert "totals" in source["snippet"]
    assert answer["context"].startswith("## Title of invoices")
    nothing = await ask(replica, query="zebra quokka xylophone")
    assert nothing["metadata"]["no_context"] is True
    assert nothing["metadata"]["reason"]


# --------------------------------------------------------------------------------------------------- OpenAPI, metrics


async def test_the_openapi_document_is_valid_and_tells_every_problem(replica: httpx.AsyncClient) -> None:
    document = (await replica.get("/openapi.json")).json()
    assert document["openapi"].startswith("3.1")
    assert_schemas_are_sound(document)
    operations = {
        f"{method} {path}": operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    assert operations.keys() >= {
        "post /api/v1/query",
        "post /api/v1/embed",
        "delete /api/v1/embeddings/{artifact_id}",
        "post /api/v1/embeddings/batch-invalidate",
        "get /api/v1/health",
        "get /api/v1/health/live",
        "get /api/v1/health/ready",
        "get /api/v1/metrics",
    }
    for name, operation in operations.items():
        assert operation["summary"], name
        for status in ("422", "503"):
            media = operation["responses"][status]["content"]
            if status == "503" and name.endswith("ready"):
                continue
            schema = media["application/problem+json"]["schema"]["$ref"]
            assert schema.endswith("/Problem"), name
        assert "HTTPValidationError" not in json.dumps(operation), name
    assert operations["post /api/v1/query"]["responses"]["500"]["content"].keys() == {"application/problem+json"}


def assert_schemas_are_sound(document: dict[str, Any]) -> None:
    """Every component is a JSON Schema, and every reference leads to one."""
    schemas = document["components"]["schemas"]
    for name, schema in schemas.items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert "$defs" not in schema, name
    references = set(re.findall(r'"\$ref": "#/components/schemas/([^"]+)"', json.dumps(document)))
    assert references <= schemas.keys()


CONTRACT_METRICS = {
    "rag_query_latency_seconds": "histogram",
    "rag_query_results_count": "histogram",
    "rag_query_tokens_used": "histogram",
    "rag_embedding_latency_seconds": "histogram",
    "rag_embedding_chunks_created_total": "counter",
    "rag_embedding_queue_size": "gauge",
    "rag_invalidation_count_total": "counter",
    "rag_invalidation_chunks_removed_total": "counter",
    "rag_index_size_total": "gauge",
    "rag_index_memory_bytes": "gauge",
}


@pytest.mark.parametrize("path", ["/metrics", "/api/v1/metrics"])
async def test_the_metrics_that_dashboards_are_built_on_are_there(
    rig: Rig, replica: httpx.AsyncClient, indexed: list[str], path: str
) -> None:
    await ask(replica, project_id="p")
    await replica.delete("/api/v1/embeddings/invoices")
    exposition = (await replica.get(path)).text
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", exposition, re.M))
    for name, kind in CONTRACT_METRICS.items():
        assert types.get(name) == kind, name
    for line in (
        'rag_query_latency_seconds_count{mode="hybrid"} 1.0',
        'rag_query_results_count_count{mode="hybrid"} 1.0',
        'rag_query_tokens_used_count{project_id="p"} 1.0',
        'rag_invalidation_count_total{reason="api"} 1.0',
        "rag_invalidation_chunks_removed_total 1.0",
        "rag_index_size_total 2.0",
        'rag_http_requests_total{route="/api/v1/query",status="200"} 1.0',
    ):
        assert line in exposition, line


async def test_requests_are_counted_by_route_never_by_path(replica: httpx.AsyncClient) -> None:
    await replica.delete("/api/v1/embeddings/one")
    await replica.delete("/api/v1/embeddings/two")
    await replica.get("/nope")
    counts = dict(re.findall(r"^rag_http_requests_total(\S+) (\S+)$", (await replica.get("/metrics")).text, re.M))
    assert counts['{route="/api/v1/embeddings/{artifact_id:path}",status="200"}'] == "2.0"
    assert counts['{route="none",status="404"}'] == "1.0"


async def test_taints_run_beside_queries_without_ever_showing_what_was_acknowledged(
    rig: Rig, replica: httpx.AsyncClient
) -> None:
    ids = [f"a{number}" for number in range(10)]
    for artifact in ids:
        rig.validated(artifact, f"a report {artifact} with totals")
    async with rig.writer():
        await rig.all_live(*ids)
    gone: set[str] = set()

    async def taint() -> None:
        for artifact in ids:
            await replica.delete(f"/api/v1/embeddings/{artifact}")
            gone.add(artifact)

    async def read() -> None:
        while len(gone) < len(ids):
            before = set(gone)
            assert not before & {*shown(await ask(replica, top_k=100))}

    await asyncio.gather(taint(), read(), read())
