"""From a question to guarded passages: candidates from the index, text and liveness from the ledger.

Steps Q1 to Q3 of docs/architecture.md. The engine neither measures for dashboards, logs nor speaks a protocol.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from dats_common.domain import sparse
from dats_common.domain.context import CODE_DOMAIN, Block, Context, assemble
from dats_common.domain.fusion import LegWeights, is_relevant, rrf
from dats_common.domain.model import ChunkRef
from dats_common.ports import Candidate, Encoder, Index, Ledger, Leg, Passage, SearchFilter

MODES: Mapping[str, frozenset[Leg]] = MappingProxyType(
    {
        "vector": frozenset({"dense"}),
        "keyword": frozenset({"sparse"}),
        "hybrid": frozenset({"dense", "sparse"}),
    }
)

_OVER_FETCH = 1.5  # the guard drops what fell or was replaced meanwhile; usually nothing
_MOST_CANDIDATES = 400
_ROUNDS = 4  # re-reads after a replaced or withdrawn candidate, refills after dropped ones: then it is good enough


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked; who asks is the filter's principal."""

    text: str
    mode: str
    where: SearchFilter
    top_k: int
    budget_tokens: int


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that passed every guard, in ranked order.

    Attributes:
        score: fused score: orders, means nothing by itself.
        similarity: cosine to the question, in [0, 1].
    """

    passage: Passage
    score: float
    similarity: float
    from_dense: bool
    from_sparse: bool


@dataclass(frozen=True, slots=True)
class Retrieved:
    """The answer to a question: hits that fitted the budget, their text, and what it took.

    Attributes:
        dropped: candidates that the guard refused: an unguarded read would have shown them.
        reason: why there is no context, or None.
    """

    hits: tuple[Hit, ...]
    context: Context
    dropped: int
    reason: str | None
    timings_ms: Mapping[str, float]


@dataclass(slots=True)
class _Stopwatch:
    """Milliseconds by stage, summed over rounds."""

    spent: dict[str, float] = field(default_factory=dict)
    _since: float = field(default_factory=time.perf_counter)

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.spent[stage] = self.spent.get(stage, 0.0) + (now - self._since) * 1e3
        self._since = now


class QueryEngine:
    """Stateless between questions: replicas may be added and removed at will."""

    def __init__(
        self,
        *,
        encoder: Encoder,
        index: Index,
        ledger: Ledger,
        min_similarity: float,
        least_candidates: int,
        weights: LegWeights,
    ) -> None:
        self._encoder = encoder
        self._index = index
        self._ledger = ledger
        self._min_similarity = min_similarity
        self._least_candidates = least_candidates  # fewer would starve fusion
        self._weights = weights

    async def retrieve(self, question: Question) -> Retrieved:
        """Ranked, visible, live passages.

        Raises: LedgerUnavailable, IndexUnavailable, EncoderUnavailable: nothing unguarded is ever returned instead.
        """
        watch = _Stopwatch()
        dense = (await self._encoder.encode([question.text], kind="query"))[0]
        legs = MODES[question.mode]
        terms = sparse.encode_query(question.text) if "sparse" in legs else None
        watch.lap("encode")
        limit = min(_MOST_CANDIDATES, max(self._least_candidates, int(question.top_k * _OVER_FETCH)))
        dropped = 0
        hits: tuple[Hit, ...] = ()
        context = Context("", (), 0)
        for round_ in range(_ROUNDS):
            candidates = await self._index.search(
                dense=dense, sparse=terms, legs=legs, where=question.where, limit=limit
            )
            watch.lap("index")
            read = await self._ledger.read([item.ref for item in candidates], question.where.principal)
            watch.lap("guard")
            dropped += len(candidates) - len(read.passages)
            again = round_ + 1 < _ROUNDS
            if again and read.superseded:
                continue  # a newer generation is live: its points were in the index before, so this finds them
            ranked = self._rank(candidates, read.passages, terms.indices if terms else ())
            full = any(
                sum(rank is not None for rank in ranks) >= limit
                for ranks in (
                    [item.dense_rank for item in candidates],
                    [item.sparse_rank for item in candidates],
                )
            )
            if again and len(ranked) < question.top_k and len(read.passages) < len(candidates) and full:
                limit = min(_MOST_CANDIDATES, limit * 2)
                continue
            hits = tuple(ranked[: question.top_k])
            context = self._assemble(hits, question.budget_tokens)
            watch.lap("assemble")
            used = [hits[position].passage.ref for position in context.used]
            live = await self._ledger.still_live(used)  # Q3: the last thing that happens
            watch.lap("guard")
            if len(live) == len(used):
                break
            dropped += len(used) - len(live)
            hits = tuple(hit for hit in hits if hit.passage.ref in live)
            context = self._assemble(hits, question.budget_tokens)
            if not again:
                break
        shown = tuple(hits[position] for position in context.used)
        return Retrieved(
            hits=shown,
            context=context,
            dropped=dropped,
            reason=None if shown else self._why_nothing(len(hits)),
            timings_ms={stage: round(spent, 3) for stage, spent in watch.spent.items()},
        )

    def _rank(
        self, candidates: Sequence[Candidate], passages: Mapping[ChunkRef, Passage], query_terms: Sequence[int]
    ) -> list[Hit]:
        ranked = []
        for item in candidates:
            passage = passages.get(item.ref)
            if passage is None:
                continue
            if item.similarity < self._min_similarity and not is_relevant(
                similarity=item.similarity,
                query_terms=query_terms,
                chunk_terms=sparse.encode_document(passage.text).indices if query_terms else (),
                min_similarity=self._min_similarity,
            ):
                continue
            score = rrf(dense_rank=item.dense_rank, sparse_rank=item.sparse_rank, weights=self._weights)
            ranked.append(
                Hit(passage, score, item.similarity, item.dense_rank is not None, item.sparse_rank is not None)
            )
        # Ties by similarity, then by source id: never by a generation or a point id, which re-embedding changes.
        return sorted(ranked, key=lambda hit: (-hit.score, -hit.similarity, hit.passage.ref.source_id))

    def _assemble(self, hits: Sequence[Hit], budget_tokens: int) -> Context:
        blocks = [
            Block(
                heading=hit.passage.metadata.title or hit.passage.ref.key.artifact_id,
                text=hit.passage.text,
                code=hit.passage.metadata.domain.startswith(CODE_DOMAIN),
                language=hit.passage.metadata.language,
            )
            for hit in hits
        ]
        return assemble(
            blocks, budget_tokens=budget_tokens, count_tokens=lambda text: len(self._encoder.token_spans(text))
        )

    def _why_nothing(self, relevant: int) -> str:
        if relevant:
            return "the relevant passages do not fit into max_tokens"
        return (
            f"nothing visible to the caller reaches a similarity of {self._min_similarity} "
            "or holds half of the query's terms"
        )
