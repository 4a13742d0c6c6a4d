"""From a question to guarded passages: candidates from the index, text and liveness from the ledger.

Steps Q1 to Q3 of docs/architecture.md. The engine neither measures for dashboards, logs nor speaks a protocol.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from dats_common.domain import sparse
from dats_common.domain.context import CODE_DOMAIN, Block, Context, assemble
from dats_common.domain.fusion import FusionRules, fuse, holds_the_terms
from dats_common.domain.model import ChunkRef, SparseVector
from dats_common.domain.wording import without_language
from dats_common.ports import Encoder, Guard, Index, Leg, Reranker
from dats_common.records import Candidate, Passage, SearchFilter
from services.query.nearest_parts import NearestParts
from services.query.query_vectors import QueryVectors
from services.query.reranking import Reranking, RerankRules, RerankTurns

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MODES: Mapping[str, frozenset[Leg]] = MappingProxyType(
    {
        "vector": frozenset({"dense"}),
        "keyword": frozenset({"sparse"}),
        "hybrid": frozenset({"dense", "sparse"}),
    }
)

_OVER_FETCH = 1.5  # the guard drops what fell or was replaced meanwhile; usually nothing
_MOST_CANDIDATES = 400
_NOTHING = Context("", (), 0)
_NEAR = 0.5
"""What stands beside a hit that is similar enough needs this share of that similarity: whether there is an answer and
what comes second are two questions, and one cut for both is wrong for either (docs/retrieval.md)."""
_ROUNDS = 4  # re-reads after a replaced or withdrawn candidate, refills after dropped ones: then it is good enough


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked; who asks is the filter's principal.

    Attributes:
        looked_at_again: whoever asks has the ledger judge the hits once more before anything leaves: the last look here
            would be one too many.
        rerank: None: as the rules have it for the domain, and only a hybrid search.
        least_similarity: of each hit (cosine), whatever terms it holds; for whoever would drop the others anyway.
    """

    text: str
    mode: str
    where: SearchFilter
    top_k: int
    budget_tokens: int
    looked_at_again: bool = False
    rerank: bool | None = None
    least_similarity: float = 0.0


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that passed every guard, in ranked order.

    Attributes:
        score: fused score: orders where nothing was reranked, means nothing by itself.
        similarity: cosine to the question, in [0, 1]; whatever ordered the hits.
        sparse_score: the keyword leg's own; None where that missed it.
    """

    passage: Passage
    score: float
    similarity: float
    from_dense: bool
    sparse_score: float | None

    @property
    def document_id(self) -> str:
        """Of the chunk's artifact."""
        return self.passage.ref.key.document_id

    @property
    def text(self) -> str:
        """Of the chunk."""
        return self.passage.text


@dataclass(frozen=True, slots=True)
class Retrieved:
    """The answer to a question: hits that fitted the budget, their text, and what it took.

    Attributes:
        dropped: candidates that the guard refused: an unguarded read would have shown them.
        reason: why there is no context, or None.
        reranked: the hits are in a reranker's order.
        rerank_reason: why they are not although that was wanted, or None.
    """

    hits: tuple[Hit, ...]
    context: Context
    dropped: int
    reason: str | None
    timings_ms: Mapping[str, float]
    reranked: bool = False
    rerank_reason: str | None = None


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question as the index takes it."""

    dense: npt.NDArray[np.float32]
    terms: SparseVector
    identifiers: frozenset[int]
    legs: frozenset[Leg]
    where: SearchFilter
    least_similarity: float


@dataclass(frozen=True, slots=True)
class _Ranking:
    """What the guard let through of the best candidates, and what it refused.

    Attributes:
        replaced: refused because a newer generation is live.
    """

    hits: Sequence[Hit]
    dropped: int
    replaced: frozenset[ChunkRef]


def _was_cut(candidates: Sequence[Candidate], limit: int) -> bool:
    """Whether a leg may have more than the `limit` candidates it gave."""
    return any(
        sum(rank is not None for rank in ranks) >= limit
        for ranks in ([item.dense_rank for item in candidates], [item.sparse_rank for item in candidates])
    )


@dataclass(slots=True)
class _Stopwatch:
    """Milliseconds by stage, summed over rounds."""

    spent: dict[str, float] = field(default_factory=dict)
    _since: float = field(default_factory=time.perf_counter)

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.spent[stage] = self.spent.get(stage, 0.0) + (now - self._since) * 1e3
        self._since = now


_Scored = tuple[Candidate, float]


def _named_first(
    ordered: Sequence[_Scored], passages: Mapping[ChunkRef, Passage], identifiers: frozenset[int]
) -> list[_Scored]:
    """What holds more of the names that were asked for comes first: a near twin (`get_user_ids`) has much the same
    vector and parts, so that no weight of the legs tells them apart."""

    def missing(each: _Scored) -> int:
        passage = passages.get(each[0].ref)
        return _missing(identifiers, passage) if passage else len(identifiers)

    return sorted(ordered, key=missing)


def _missing(identifiers: frozenset[int], passage: Passage) -> int:
    # By its text alone: every chunk of a file that is named after a function has that name in its title.
    return len(identifiers - sparse.term_ids(passage.text))


def _is_relevant(item: Candidate, passage: Passage, asked: _Asked, *, least: float) -> bool:
    if item.similarity >= least:
        return True
    # Only what the cut on similarity would drop is worth reading again for its terms: whichever leg found it.
    return holds_the_terms(
        query_terms=asked.terms.indices,
        text_terms=sparse.term_ids(passage.text),
        title_terms=sparse.term_ids(passage.metadata.title),
    )


def _hit(item: Candidate, passage: Passage, score: float) -> Hit:
    return Hit(passage, score, item.similarity, item.dense_rank is not None, item.sparse_score)


class Retrieval(Protocol):
    """What answers and routes need of the engine."""

    reranker: Reranker | None
    min_similarity: float

    async def retrieve(self, question: Question) -> Retrieved:
        """See `QueryEngine`."""


class QueryEngine:
    """Stateless between questions: replicas may be added and removed at will."""

    def __init__(
        self,
        *,
        encoder: Encoder,
        index: Index,
        ledger: Guard,
        min_similarity: float,
        least_candidates: int,
        fusion: FusionRules,
        reranker: Reranker | None = None,
        rerank: RerankRules | None = None,
    ) -> None:
        self._encoder = encoder
        self._vectors = QueryVectors(encoder)
        self._index = index
        self._ledger = ledger
        self.min_similarity = min_similarity
        self._least_candidates = least_candidates  # fewer would starve fusion
        self._fusion = fusion
        self._rerank = rerank or RerankRules()
        self.reranker = reranker
        self._turns = RerankTurns(reranker) if reranker else None

    async def retrieve(self, question: Question) -> Retrieved:
        """Ranked, visible, live passages.

        Raises: LedgerUnavailable, IndexUnavailable, EncoderUnavailable: nothing unguarded is ever returned instead.
        """
        watch = _Stopwatch()
        asked = await self._encode(question)
        watch.lap("encode")
        reranking = self._reranking(question, asked)
        wanted = max(question.top_k, reranking.max_pairs if reranking else 0)
        limit = min(_MOST_CANDIDATES, max(self._least_candidates, int(wanted * _OVER_FETCH)))
        replaced: frozenset[ChunkRef] = frozenset()
        dropped = 0
        shown: tuple[Hit, ...] = ()
        context = _NOTHING
        for rounds_left in reversed(range(_ROUNDS)):
            candidates = await self._index.search(
                dense=asked.dense, sparse=asked.terms, legs=asked.legs, where=asked.where, limit=limit
            )
            watch.lap("index")
            ranking = await self._read_best(candidates, asked, wanted=wanted)
            watch.lap("guard")
            dropped += ranking.dropped
            if rounds_left and ranking.replaced - replaced:
                # A newer generation is live. Its points were in the index before that, so looking again finds them;
                # what is replaced still, is only not swept yet.
                replaced |= ranking.replaced
                continue
            if rounds_left and ranking.dropped and len(ranking.hits) < question.top_k and _was_cut(candidates, limit):
                limit = min(_MOST_CANDIDATES, limit * 2)
                continue
            hits = ranking.hits
            if reranking:
                hits = await reranking.order(hits)
                if asked.identifiers:  # what holds the names that were asked for stays first
                    hits = sorted(hits, key=lambda hit: _missing(asked.identifiers, hit.passage))
                watch.lap("rerank")
            shown, context = self._fit(hits[: question.top_k], question.budget_tokens)
            watch.lap("assemble")
            if question.looked_at_again:
                break
            # Q3: the last thing that happens
            live = await self._ledger.still_live([hit.passage.ref for hit in shown], question.where.principal)
            watch.lap("guard")
            if len(live) == len(shown):
                break
            dropped += len(shown) - len(live)
            shown, context = self._fit([hit for hit in shown if hit.passage.ref in live], question.budget_tokens)
        return Retrieved(
            hits=shown,
            context=context,
            dropped=dropped,
            reason=None if shown else self._why_nothing(),
            timings_ms={stage: round(spent, 3) for stage, spent in watch.spent.items()},
            reranked=reranking is not None and reranking.reason is None and bool(shown),
            rerank_reason=reranking.reason if reranking else None,
        )

    def _reranking(self, question: Question, asked: _Asked) -> Reranking | None:
        """None: the order of fusion is what is wanted."""
        unasked = (
            self.reranker is not None and question.mode == "hybrid" and self._rerank.reranks(question.where.domain)
        )
        if not (unasked if question.rerank is None else question.rerank):
            return None
        parts = NearestParts(self._encoder, asked.dense)
        return Reranking(question.text, turns=self._turns, rules=self._rerank, parts=parts)

    async def _encode(self, question: Question) -> _Asked:
        told = without_language(question.text, domain=question.where.domain)
        dense = await self._vectors.of(told, tenant_id=question.where.principal.tenant_id)
        legs = MODES[question.mode]
        terms = sparse.encode_query(question.text)
        identifiers: frozenset[int] = sparse.identifier_ids(question.text) if "sparse" in legs else frozenset()
        return _Asked(dense, terms, identifiers, legs, question.where, question.least_similarity)

    async def _read_best(self, candidates: Sequence[Candidate], asked: _Asked, *, wanted: int) -> _Ranking:
        """Q2: the best candidates that pass the guard and are relevant. Text is the costly part, and of a hundred
        candidates ten are shown: the others are read only where too few of the first are left, or where one of them
        may hold a name that was asked for."""
        ordered = self._ordered(candidates, asked)
        first = len(ordered) if asked.identifiers else 2 * wanted
        hits: list[Hit] = []
        is_answered = False
        dropped = 0
        replaced: set[ChunkRef] = set()
        for number, part in enumerate(filter(None, (ordered[:first], ordered[first:]))):
            read = await self._ledger.read([item.ref for item, _ in part], asked.where.principal)
            if asked.identifiers:
                part = _named_first(part, read.passages, asked.identifiers)
            for item, score in part:
                if number and is_answered and len(hits) == wanted:
                    break  # Of the others what lies behind the last hit says nothing about this answer.
                passage = read.passages.get(item.ref)
                if passage is None:
                    dropped += 1
                    if item.ref.key in read.superseded:
                        replaced.add(item.ref)
                    continue
                is_answered = is_answered or _is_relevant(item, passage, asked, least=self.min_similarity)
                is_near = item.similarity >= asked.least_similarity and _is_relevant(
                    item, passage, asked, least=_NEAR * self.min_similarity
                )
                if len(hits) < wanted and is_near:
                    hits.append(_hit(item, passage, score))
            if is_answered and len(hits) >= wanted:
                break
        return _Ranking(hits if is_answered else (), dropped, frozenset(replaced))

    def _ordered(self, candidates: Sequence[Candidate], asked: _Asked) -> list[_Scored]:
        scores = fuse(candidates, rules=self._fusion, domain=asked.where.domain)
        # Ties by similarity, then by source id: never by a generation or a point id, which re-embedding changes.
        return sorted(
            zip(candidates, scores, strict=True),
            key=lambda each: (-each[1], -each[0].similarity, each[0].ref.source_id),
        )

    def _fit(self, hits: Sequence[Hit], budget_tokens: int) -> tuple[tuple[Hit, ...], Context]:
        """The hits that fit the budget, and their text."""
        blocks = [
            Block(
                heading=hit.passage.metadata.title or hit.passage.ref.key.artifact_id,
                text=hit.passage.text,
                tokens=hit.passage.token_count,
                code=hit.passage.metadata.domain.startswith(CODE_DOMAIN),
                language=hit.passage.metadata.language,
            )
            for hit in hits
        ]
        context = assemble(
            blocks, budget_tokens=budget_tokens, count_tokens=lambda text: len(self._encoder.token_spans(text))
        )
        return tuple(hits[position] for position in context.used), context

    def _why_nothing(self) -> str:
        return (
            f"nothing that the caller may see has a similarity of {self.min_similarity} "
            "or holds half of the query's terms (all of them with its title), within max_tokens"
        )
