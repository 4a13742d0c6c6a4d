"""Reranking as a caller sees it: what it orders, what it never does, and what is said when it does not come."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
from rig import Rig, Switch, eventually
from structlog.testing import capture_logs
from tiny_cross_encoder import save_cross_encoder

from dats_common.adapters.memory_reranker import MemoryReranker
from dats_common.domain.model import ArtifactKey, ChunkRef, SourceMetadata
from dats_common.domain.parts import PART_TOKENS
from dats_common.errors import EncoderUnavailable, Overloaded, RerankerUnavailable
from dats_common.records import Passage
from dats_common.settings import Settings
from dats_common.settings.sections import Query
from dats_common.settings.sections import Reranking as Chosen
from dats_common.telemetry.replica_metrics import QueryMetrics
from dats_common.telemetry.reranking import MeasuredReranker
from services.query.engine import Hit
from services.query.nearest_parts import NearestParts
from services.query.reranking import CERTAIN, NO_RERANKER, Reranking, RerankRules, RerankTurns
from services.query.wiring import open_reranker, rerank_rules

QUESTION = "a report with totals"
NAMES = ["apples", "bread", "cider", "dates", "eggs", "figs"]
PATIENT_S = 30.0  # where the deadline is not what is tested


class Ranks:
    """A reranker that a test tells what is relevant; it can be held up and can fail."""

    model = "scripted"

    def __init__(self, relevance: Callable[[str], float]) -> None:
        self.relevance = relevance
        self.switch = Switch()
        self.error: Exception | None = None
        self.read: list[list[str]] = []

    async def rerank(self, query: str, passages: Sequence[str]) -> list[float]:
        self.read.append(list(passages))
        await self.switch.passed()
        if self.error:
            raise self.error
        return [self.relevance(passage) for passage in passages]

    async def ping(self) -> None:
        if self.error:
            raise self.error


def text(name: str, number: int) -> str:
    return f"{QUESTION} on {name}" + " and more" * number


def position(passage: str) -> float:
    """The later in `NAMES`, the more relevant."""
    return next(number for number, name in enumerate(NAMES) if name in passage) / len(NAMES)


@pytest.fixture
async def shelf(rig: Rig) -> Rig:
    """Six documents, each further from the question than the one before."""
    for number, name in enumerate(NAMES):
        rig.validated(name, text(name, number))
    async with rig.writer():
        await rig.all_live(*NAMES)
    return rig


async def ask(client: httpx.AsyncClient, query: str = QUESTION, **more: Any) -> Any:
    response = await client.post("/api/v1/query", json={"query": query, **more})
    assert response.status_code == 200, response.text
    return response.json()


def shown(answer: Any) -> list[str]:
    return [source["artifact_id"] for source in answer["sources"]]


def told(answer: Any) -> tuple[bool, str | None]:
    return answer["reranked"], answer["rerank_reason"]


@asynccontextmanager
async def replica(rig: Rig, reranker: Ranks, **rules: Any) -> AsyncIterator[httpx.AsyncClient]:
    rig.reranker = reranker
    usual = {"domains": {"": True}, "weight": 1.0, "parts_weight": 0.0, "deadline_s": PATIENT_S, "certain_lead": 1.0}
    rig.rerank = RerankRules(**{**usual, **rules})
    async with rig.replica() as client:
        yield client


async def fused(rig: Rig) -> Any:
    async with rig.replica() as client:
        answer = await ask(client)
    assert shown(answer) == NAMES
    assert told(answer) == (False, None)
    return answer


# -------------------------------------------------------------------------------------------------------------- order


async def test_sources_and_context_come_in_the_reranker_s_order(shelf: Rig) -> None:
    before = await fused(shelf)
    async with replica(shelf, Ranks(position)) as client:
        answer = await ask(client)
    assert shown(answer) == NAMES[::-1]
    assert told(answer) == (True, None)
    assert [answer["context"].index(name) for name in NAMES] == sorted(
        (answer["context"].index(name) for name in NAMES), reverse=True
    )
    scores = [
        {source["artifact_id"]: source["relevance_score"] for source in each["sources"]} for each in (before, answer)
    ]
    assert scores[0] == scores[1], "a score is the similarity, whatever ordered the sources"
    assert "rerank" in answer["metadata"]["stages_ms"]


async def test_a_better_passage_comes_up_from_below_what_was_asked_for(shelf: Rig) -> None:
    async with replica(shelf, Ranks(position)) as client:
        assert shown(await ask(client, top_k=2)) == NAMES[:3:-1]


async def test_no_more_pairs_are_read_than_the_cap_and_the_rest_keeps_its_order(shelf: Rig) -> None:
    reranker = Ranks(position)
    async with replica(shelf, reranker, max_pairs=3) as client:
        answer = await ask(client)
    assert [len(read) for read in reranker.read] == [3]
    assert shown(answer) == [*NAMES[2::-1], *NAMES[3:]]


async def test_fusion_has_its_share_in_the_order(shelf: Rig) -> None:
    orders = []
    for weight in (0.0, 0.5, 1.0):
        async with replica(shelf, Ranks(position), weight=weight) as client:
            orders.append(shown(await ask(client)))
    assert orders[0] == NAMES
    assert orders[2] == NAMES[::-1]
    assert orders[1] not in (NAMES, NAMES[::-1])


def hit(
    artifact: str, *, score: float, similarity: float = 0.5, words: float | None = None, generation: int = 1
) -> Hit:
    ref = ChunkRef(ArtifactKey("default", artifact), generation, 0)
    return Hit(Passage(ref, artifact, 1, SourceMetadata("p"), 1), score, similarity, True, words)


async def test_equals_are_ordered_by_similarity_and_then_by_source_id() -> None:
    hits = [
        hit("worded", score=0.9, similarity=0.3, generation=1),
        *(hit(f"twin-{number}", score=0.8, similarity=0.6, generation=9 - number) for number in range(5)),
        hit("close", score=0.1, similarity=0.7, generation=2),
    ]
    rules = RerankRules(weight=1.0, certain_lead=1.0)
    orders = []
    for given in (hits, hits[::-1]):
        reranking = Reranking("q", turns=RerankTurns(Ranks(lambda _: 0.5)), rules=rules)
        orders.append(await reranking.order(given))
        assert reranking.reason is None
    assert orders[0] == orders[1]
    assert [each.similarity for each in orders[0]] == [0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.3]
    twins = [each.passage.ref.source_id for each in orders[0][1:-1]]
    assert twins == sorted(twins)


async def test_one_is_reranked_after_the_other_and_what_cannot_be_in_time_is_refused_at_once() -> None:
    class Slow(Ranks):
        async def rerank(self, query: str, passages: Sequence[str]) -> list[float]:
            await asyncio.sleep(0.02 * len(passages))
            return await super().rerank(query, passages)

    reranker = Slow(lambda _: 0.5)
    turns, now = RerankTurns(reranker), asyncio.get_running_loop().time
    assert await turns.rerank("q", ["a"], until=now()) == [0.5], "nobody knows yet what it takes"
    reranker.switch.hold()
    first = asyncio.create_task(turns.rerank("q", ["a"] * 10, until=now() + 60.0))
    await reranker.switch.reached.wait()
    second = asyncio.create_task(turns.rerank("q", ["b"] * 10, until=now() + 60.0))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="20 passages wait"):
        await turns.rerank("q", ["c"], until=now() + 0.2)  # 21 pairs take .42 s
    assert len(reranker.read) == 2, "the second has not begun"
    reranker.switch.open.set()
    assert [len(await task) for task in (first, second)] == [10, 10]
    assert await turns.rerank("q", ["c"], until=now() + 0.4) == [0.5]


async def test_what_holds_a_name_of_code_stays_first(rig: Rig) -> None:
    for name in ("get_user_id", "get_user_ids"):
        rig.validated(name, f"def {name}(value): return the id of the user of {name}")
    async with rig.writer():
        await rig.all_live("get_user_id", "get_user_ids")
    reranker = Ranks(lambda passage: float("get_user_ids" in passage))
    async with replica(rig, reranker) as client:
        answer = await ask(client, query="where is get_user_id?")
    assert shown(answer) == ["get_user_id", "get_user_ids"]
    assert told(answer) == (True, None)


# ------------------------------------------------------------------------------------------------------ nearest part

LONG = "Hedges are cut in spring before the birds come back to nest in them. " * 12


class Marks:
    """An encoder of two dimensions: a text is near to what is asked if it is short and holds the word `answer`."""

    model = backend = "marks"
    dimension, max_tokens = 2, 4096

    def __init__(self, *, error: Exception | None = None) -> None:
        self.error = error
        self.read: list[str] = []

    async def encode(self, texts: Sequence[str], *, kind: str) -> npt.NDArray[np.float32]:
        if self.error:
            raise self.error
        assert kind == "document", "what others ask goes first"
        self.read += texts
        shares = [each.count("answer") * 8 / len(each) for each in texts]
        return np.array([(share, (1 - share**2) ** 0.5) for share in shares], np.float32)

    def token_spans(self, text: str) -> list[tuple[int, int]]:
        return [found.span() for found in re.finditer(r"\w+", text)]


def passages(*texts: str, title: str = "") -> list[Hit]:
    return [
        Hit(
            Passage(ChunkRef(ArtifactKey("default", each[:20]), 1, 0), each, 1, SourceMetadata("p", title=title), 1),
            1.0,
            0.5,
            True,
            None,
        )
        for each in texts
    ]


def looking(encoder: Marks, **rules: float) -> Reranking:
    return Reranking(
        "q",
        turns=RerankTurns(Ranks(lambda passage: 0.6 if passage.startswith("Hedges") else 0.5)),
        rules=RerankRules(**{"weight": 1.0, "certain_lead": 1.0, **rules}),
        parts=NearestParts(encoder, np.array([1, 0], np.float32)),
    )


async def test_a_passage_counts_by_its_nearest_part_as_well() -> None:
    """The reranker wants the hedges; one part of the other passage, which is as long, holds what is asked for."""
    hits = passages(LONG, LONG.replace("Hedges", "Fences", 1) + "The answer.", title="Gardens")
    assert [each.text[:6] for each in await looking(Marks(), parts_weight=0.4).order(hits)] == ["Hedges", "Fences"]
    assert [each.text[:6] for each in await looking(Marks(), parts_weight=0.6).order(hits)] == ["Fences", "Hedges"]


async def test_every_part_is_read_with_the_title_and_none_twice() -> None:
    encoder = Marks()
    reranking = looking(encoder)
    hits = passages(LONG, title="Gardens")
    await reranking.order(hits)
    assert len(encoder.read) == -(-len(LONG.split()) // PART_TOKENS)
    assert all(each.startswith("Gardens: ") for each in encoder.read)
    before = list(encoder.read)
    await reranking.order([*hits, *passages("Another passage.")])
    assert encoder.read == [*before, "Another passage"]


async def test_without_a_weight_no_part_is_encoded() -> None:
    encoder = Marks()
    await looking(encoder, parts_weight=0.0).order(passages(LONG, "Another passage."))
    assert encoder.read == []


async def test_the_order_is_that_of_fusion_where_parts_cannot_be_encoded() -> None:
    reranking = looking(Marks(error=EncoderUnavailable("no model server")))
    hits = passages("Fences", LONG)
    assert await reranking.order(hits) == hits
    assert reranking.reason == "no model server"


async def test_parts_are_looked_at_through_the_engine(shelf: Rig) -> None:
    """The reranker wants them the other way round; the parts, which are the whole of these short documents, decide."""
    async with replica(shelf, Ranks(position), weight=1.0, parts_weight=1.0) as client:
        answer = await ask(client)
    assert shown(answer) == NAMES
    assert told(answer) == (True, None)


# --------------------------------------------------------------------------------------------------------------- when


async def read(hits: Sequence[Hit], **rules: float) -> bool:
    """Whether the passages are read; the last is what a reranker wants first."""
    reranker = Ranks(lambda passage: float(passage == hits[-1].passage.text))
    reranking = Reranking("q", turns=RerankTurns(reranker), rules=RerankRules(weight=1.0, **rules))
    order = await reranking.order(hits)
    assert (reranking.reason, len(reranker.read)) in ((None, 1), (CERTAIN, 0))
    assert order[0] == (hits[0] if reranking.reason else hits[-1])
    return reranking.reason is None


@pytest.mark.parametrize(("certain_lead", "reads"), [(0.25, True), (0.24, False), (0.0, False), (1.0, True)])
async def test_nothing_is_read_where_the_first_is_far_ahead(certain_lead: float, reads: bool) -> None:
    hits = [hit("first", score=2.0), hit("second", score=1.5), hit("third", score=0.0)]
    assert await read(hits, certain_lead=certain_lead) is reads


@pytest.mark.parametrize(
    ("similarity", "words", "reads"),
    [
        (0.8, 5.0, False),
        (0.7, 4.0, False),
        (0.69, 5.0, True),
        (0.8, 3.9, True),
        (0.8, None, True),
    ],
    ids=["first-of-both", "as-good-in-both", "less-similar", "fewer-words", "missed-by-keywords"],
)
async def test_nothing_is_read_where_both_legs_have_the_same_first(
    similarity: float, words: float | None, reads: bool
) -> None:
    hits = [
        hit("first", score=0.9, similarity=similarity, words=words),
        hit("second", score=0.89, similarity=0.7, words=None),
        hit("third", score=0.88, similarity=0.6, words=4.0),
    ]
    assert await read(hits) is reads
    assert await read(hits, certain_lead=1.0)


async def test_a_name_of_code_that_comes_first_is_no_sign_of_certainty() -> None:
    """The chunks that hold it stand before what fusion has first."""
    hits = [hit("named", score=0.3), hit("named-too", score=0.1), hit("fused", score=0.9)]
    assert await read(hits)


async def test_one_passage_is_no_lead() -> None:
    assert await read([hit("alone", score=0.9, words=1.0)])


async def test_the_legs_agree_through_the_engine(shelf: Rig) -> None:
    """Apples alone have the words of this question, and are the most similar to it."""
    reranker = Ranks(position)
    async with replica(shelf, reranker, certain_lead=0.999) as client:
        agreed = await ask(client, query=text("apples", 0), rerank=True)
        assert (shown(agreed)[0], told(agreed), reranker.read) == ("apples", (False, CERTAIN), [])


async def test_another_round_is_read_where_fusion_is_no_longer_certain() -> None:
    """The first passage was withdrawn between two looks at the ledger."""
    reranker = Ranks(lambda passage: float(passage == "third"))
    reranking = Reranking("q", turns=RerankTurns(reranker), rules=RerankRules(weight=1.0, certain_lead=0.2))
    hits = [hit("first", score=0.9), hit("second", score=0.5), hit("third", score=0.5)]
    assert await reranking.order(hits) == hits
    assert reranking.reason == CERTAIN
    assert await reranking.order(hits[1:]) == [hits[2], hits[1]]
    assert reranking.reason is None


async def test_a_reranker_that_failed_is_not_forgotten_where_fusion_is_certain_later() -> None:
    reranker = Ranks(position)
    reranker.error = RerankerUnavailable("gone")
    reranking = Reranking("q", turns=RerankTurns(reranker), rules=RerankRules(certain_lead=0.2))
    hits = [hit("first", score=0.9), hit("second", score=0.5), hit("third", score=0.5)]
    await reranking.order(hits[1:])
    await reranking.order(hits)
    assert reranking.reason == "gone"


async def test_the_caller_is_told_that_fusion_was_certain(shelf: Rig) -> None:
    reranker = Ranks(position)
    async with replica(shelf, reranker, certain_lead=0.0) as client:
        answer = await ask(client, rerank=True)
    assert shown(answer) == NAMES
    assert told(answer) == (False, CERTAIN)
    assert reranker.read == []


@pytest.mark.parametrize(
    ("request_", "reranked"),
    [
        ({"domain": "prose"}, True),
        ({"domain": "prose-code"}, False),
        ({"domain": "code"}, False),
        ({}, False),
        ({"domain": "prose", "search_mode": "vector"}, False),
        ({"domain": "prose", "rerank": False}, False),
        ({"rerank": True}, True),
        ({"rerank": True, "search_mode": "keyword"}, True),
    ],
)
async def test_the_domain_says_whether_and_the_request_has_the_last_word(
    rig: Rig, request_: dict[str, Any], reranked: bool
) -> None:
    for domain in ("prose", "prose-code", "code"):
        rig.validated(domain, text("figs", 0), domain=domain)
    async with rig.writer():
        await rig.all_live("prose", "prose-code", "code")
    reranker = Ranks(lambda _: 0.5)
    async with replica(rig, reranker, domains={"prose": True, "prose-code": False}) as client:
        assert told(await ask(client, **request_)) == (reranked, None)
    assert bool(reranker.read) == reranked


async def test_who_asks_for_it_where_there_is_none_is_told(shelf: Rig) -> None:
    async with shelf.replica() as client:
        answer = await ask(client, rerank=True)
    assert (shown(answer), told(answer)) == (NAMES, (False, NO_RERANKER))


# ------------------------------------------------------------------------------------------------------------- in time


async def test_a_reranker_that_is_late_is_not_waited_for(shelf: Rig) -> None:
    before = await fused(shelf)
    reranker = Ranks(position)
    reranker.switch.hold()
    async with replica(shelf, reranker, deadline_s=0.05) as client:
        answer = await asyncio.wait_for(ask(client), 5.0)
    assert answer["context"] == before["context"]
    reranked, reason = told(answer)
    assert not reranked
    assert reason is not None
    assert "50 ms" in reason


async def test_a_reranker_that_fails_costs_nobody_an_answer_and_more_than_top_k_are_never_shown(shelf: Rig) -> None:
    reranker = Ranks(position)
    reranker.error = RerankerUnavailable("out of memory")
    async with replica(shelf, reranker) as client:
        answer = await ask(client, top_k=2)
        health = (await client.get("/api/v1/health")).json()
        reranker.error = None
        assert told(await ask(client)) == (True, None), "it is asked again"
        well = (await client.get("/api/v1/health")).json()
    assert (shown(answer), told(answer)) == (NAMES[:2], (False, "out of memory"))
    assert health["components"]["reranker"] == {"status": "unavailable", "detail": "out of memory"}
    assert well["components"]["reranker"] == {"status": "ok", "detail": ""}
    assert health["status"] == well["status"], "search does without it"


async def test_what_shows_nothing_was_not_reranked(shelf: Rig) -> None:
    async with replica(shelf, Ranks(position)) as client:
        answer = await ask(
            client, "zinc oxide sunscreen on alpine holidays", user_tags=["nobody"], filters={"tags": ["nobody"]}
        )
    assert shown(answer) == []
    assert told(answer) == (False, None)


async def test_health_says_that_there_is_none(shelf: Rig) -> None:
    async with shelf.replica() as client:
        health = (await client.get("/api/v1/health")).json()
    assert health["components"]["reranker"] == {"status": "off", "detail": ""}


async def test_dashboards_see_each_outcome_and_the_log_each_change_once(shelf: Rig) -> None:
    metrics = QueryMetrics()
    inner = Ranks(position)

    def count(outcome: str) -> float | None:
        return metrics.registry.get_sample_value("rag_rerank_latency_seconds_count", {"outcome": outcome})

    shelf.rerank = RerankRules(domains={"": True}, deadline_s=1.0, certain_lead=1.0)
    shelf.reranker = MeasuredReranker(inner, metrics)
    async with shelf.replica() as client:
        with capture_logs() as logged:
            await ask(client)
            inner.error = RerankerUnavailable("out of memory")
            await ask(client)
            await ask(client)
            inner.error = None
            inner.switch.hold()
            await ask(client)
            inner.switch.open.set()
            await ask(client)
    assert [count(outcome) for outcome in ("done", "failed", "late")] == [2, 2, 1]
    assert metrics.registry.get_sample_value("rag_reranked_pairs_total") == 2 * len(NAMES)
    events = [(each["event"], each.get("how"), each.get("reason")) for each in logged if "rerank" in each["event"]]
    assert events == [
        ("reranker_missed", "failed", "out of memory"),
        ("reranker_missed", "late", ""),
        ("reranker_recovered", None, None),
    ]


# ------------------------------------------------------------------------------------------------------------- promise


async def test_what_is_tainted_while_it_is_reranked_is_not_shown(shelf: Rig) -> None:
    reranker = Ranks(position)
    reranker.switch.hold()
    async with replica(shelf, reranker, deadline_s=20.0) as client:
        asking = asyncio.create_task(ask(client))
        await asyncio.wait_for(reranker.switch.reached.wait(), 20)
        await client.delete(f"/api/v1/embeddings/{NAMES[-1]}")
        reranker.switch.open.set()
        answer = await asking
    assert shown(answer) == NAMES[-2::-1], "the rest as the reranker has it"
    assert NAMES[-1] not in answer["context"]
    assert told(answer) == (True, None)
    assert [len(read) for read in reranker.read] == [len(NAMES)], "no passage is read twice"


async def test_the_deadline_is_for_all_rounds_of_a_question_together(shelf: Rig) -> None:
    """A taint during the first round makes a second one, which finds another passage to read."""
    reranker = Ranks(position)
    reranker.switch.hold()

    async def passes_slowly() -> None:
        reranker.switch.reached.set()
        await reranker.switch.open.wait()
        await asyncio.sleep(0.3)

    reranker.switch.passed = passes_slowly  # type: ignore[method-assign]
    async with replica(shelf, reranker, deadline_s=0.5, max_pairs=2) as client:
        asking = asyncio.create_task(ask(client, top_k=2))
        await asyncio.wait_for(reranker.switch.reached.wait(), 20)
        await client.delete(f"/api/v1/embeddings/{NAMES[0]}")
        reranker.switch.open.set()
        answer = await asyncio.wait_for(asking, 20)
    assert shown(answer) == NAMES[1:3], "as fusion has them"
    reranked, reason = told(answer)
    assert not reranked
    assert "500 ms" in (reason or "")


# -------------------------------------------------------------------------------------------------------------- wiring


async def test_the_settings_name_the_reranker_and_a_wrong_one_does_not_stop_the_start(
    shelf: Rig, tmp_path: Path
) -> None:
    def set_to(model: Path) -> Settings:
        return Settings(
            query=Query(
                reranking=Chosen(
                    enabled=True, model=str(model), max_pairs=7, parts_weight=0.1, deadline_ms=250, certain_lead=0.5
                )
            )
        )

    assert rerank_rules(set_to(tmp_path)) == RerankRules(7, 0.7, 0.1, 0.25, 0.5, {"docs": True})
    metrics = QueryMetrics()
    async with open_reranker(Settings(), metrics) as nothing:
        assert nothing is None
    folder = tmp_path / "model"
    folder.mkdir()
    save_cross_encoder(folder, labels=("relevance",), liked="night")
    shelf.rerank = RerankRules(deadline_s=PATIENT_S, certain_lead=1.0)
    async with open_reranker(set_to(folder), metrics) as shelf.reranker, shelf.replica() as client:

        async def ready() -> bool:
            health: Any = (await client.get("/api/v1/health")).json()
            return bool(health["components"]["reranker"]["status"] == "ok")

        await eventually(ready, timeout_s=60)
        assert told(await ask(client, rerank=True)) == (True, None)
    async with open_reranker(set_to(tmp_path / "nowhere"), metrics) as shelf.reranker, shelf.replica() as client:

        async def refused() -> bool:
            return "nowhere" in (told(await ask(client, rerank=True))[1] or "")

        await eventually(refused, timeout_s=60)


async def test_the_twin_serves_as_a_reranker(shelf: Rig) -> None:
    shelf.reranker, shelf.rerank = MemoryReranker(), RerankRules(deadline_s=PATIENT_S, certain_lead=1.0)
    async with shelf.replica() as client:
        answer = await ask(client, query="figs and eggs", rerank=True, top_k=1)
    assert told(answer) == (True, None)
    assert shown(answer)[0] in {"figs", "eggs"}
