"""One question's reranking: which passages a model reads with the query, for how long, and their order then."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol, TypeVar

from dats_common.domain.fusion import blend
from dats_common.domain.model import ChunkRef
from dats_common.errors import Overloaded, Unavailable
from dats_common.ports import Reranker
from dats_common.records import Passage
from services.query.nearest_parts import NearestParts

NO_RERANKER = "no reranker is set: see query.reranking"
CERTAIN = "fusion is certain of the first source: see query.reranking.certain_lead"


@dataclass(frozen=True, slots=True)
class RerankRules:
    """When to rerank, and how much.

    Attributes:
        max_pairs: passages that are read, the best of fusion; those behind them keep their order.
        weight: of the reranker against fusion, from 0 to 1; see `domain.fusion.blend`.
        parts_weight: share of each passage's nearest part beside those two; 0: no parts are looked at.
        deadline_s: for one question, all rounds of the engine together.
        certain_lead: nothing is read where both legs have the same first passage, or where every other's fused score
            is less than the first's by more than this share of it. 1: always read.
        domains: whether to rerank what does not ask for it, by the beginning of its domain; the longest counts.
    """

    max_pairs: int = 10
    weight: float = 0.7
    parts_weight: float = 0.25
    deadline_s: float = 1.0
    certain_lead: float = 0.3
    domains: Mapping[str, bool] = field(default_factory=lambda: MappingProxyType({}))

    def reranks(self, domain: str | None) -> bool:
        """Whether a question for this domain is reranked unasked."""
        fitting = [beginning for beginning in self.domains if (domain or "").startswith(beginning)]
        return bool(fitting) and self.domains[max(fitting, key=len)]


class Rankable(Protocol):
    """What is ordered."""

    @property
    def passage(self) -> Passage:
        """Its text is read."""

    @property
    def score(self) -> float:
        """Of fusion."""

    @property
    def similarity(self) -> float:
        """Cosine to the query: breaks ties."""

    @property
    def sparse_score(self) -> float | None:
        """Of the keyword leg; None where that missed it."""


R = TypeVar("R", bound=Rankable)

_NEWEST = 0.2  # share of the last reading in what a pair is known to take


class RerankTurns:
    """One question's passages after another's: all at once they would all be late together. For one event loop.

    What cannot be done in time, by what earlier readings took, is refused at once: the order of fusion is there.
    """

    def __init__(self, reranker: Reranker) -> None:
        self._reranker = reranker
        self._turn = asyncio.Lock()
        self._pairs = 0
        self._pair_s = 0.0

    async def rerank(self, query: str, passages: Sequence[str], *, until: float) -> list[float]:
        """See `ports.Reranker`.

        Args:
            until: when it must be done, by the loop's clock; whoever calls cancels it then.

        Raises: Overloaded: it will not be done; RerankerUnavailable.
        """
        loop = asyncio.get_running_loop()
        if self._pairs and loop.time() + (self._pairs + len(passages)) * self._pair_s > until:
            raise Overloaded(f"{self._pairs} passages wait for the reranker already")
        self._pairs += len(passages)
        try:
            async with self._turn:
                started = loop.time()
                found = await self._reranker.rerank(query, passages)
                spent_s = (loop.time() - started) / max(1, len(passages))
                self._pair_s += (_NEWEST if self._pair_s else 1.0) * (spent_s - self._pair_s)
                return found
        finally:
            self._pairs -= len(passages)


class Reranking:
    """The reranking of one question over all rounds of the engine: no passage is read twice."""

    def __init__(
        self, query: str, *, turns: RerankTurns | None, rules: RerankRules, parts: NearestParts | None = None
    ) -> None:
        """Begin with nothing read.

        Args:
            parts: of this question; None: they do not count, whatever the rules say.
        """
        self.max_pairs = rules.max_pairs if turns else 0
        self.reason = None if turns else NO_RERANKER
        """Why the order is still that of fusion; None: it is not."""
        self._query = query
        self._turns = turns
        self._parts = parts if rules.parts_weight else None
        self._weight = rules.weight
        self._parts_weight = rules.parts_weight if parts else 0.0
        self._certain_lead = rules.certain_lead
        self._left_s = rules.deadline_s
        self._deadline_s = rules.deadline_s
        self._known: dict[ChunkRef, tuple[float, float]] = {}

    async def order(self, ranked: Sequence[R]) -> list[R]:
        """The same hits, the first `max_pairs` anew; as they came if fusion is certain, or once anything went wrong.

        Never raises.
        """
        head, rest = ranked[: self.max_pairs], ranked[self.max_pairs :]
        if self.reason in (None, CERTAIN):  # another round has other passages
            self.reason = CERTAIN if self._is_certain(ranked) else await self._read(head)
        if self.reason is not None:
            return list(ranked)
        known = [self._known[each.passage.ref] for each in head]
        scores = blend(
            [relevance for relevance, _ in known],
            [each.score for each in head],
            weight=self._weight,
            nearest=[nearest for _, nearest in known],
            nearest_weight=self._parts_weight,
        )
        # Ties as in fusion: never by a generation or a point id, which re-embedding changes.
        anew = sorted(
            zip(scores, head, strict=True),
            key=lambda scored: (-scored[0], -scored[1].similarity, scored[1].passage.ref.source_id),
        )
        return [*(each for _, each in anew), *rest]

    def _is_certain(self, ranked: Sequence[R]) -> bool:
        if len(ranked) < 2 or self._certain_lead == 1:
            return False
        # By scores, not by ranks: which of two equals an index puts first is its own affair.
        first, others = ranked[0], ranked[1:]
        if first.sparse_score is not None:
            words = max((each.sparse_score for each in others if each.sparse_score is not None), default=-math.inf)
            if first.sparse_score >= words and first.similarity >= max(each.similarity for each in others):
                return True
        # Not of the second alone: what holds a name that was asked for stands before what fusion had first.
        return max(each.score for each in others) < (1 - self._certain_lead) * first.score

    async def _read(self, head: Sequence[R]) -> str | None:
        """What was not read in an earlier round. Returns why that did not come about, or None."""
        passages = [each.passage for each in head if each.passage.ref not in self._known]
        if self._turns is None or not passages:
            return None
        loop = asyncio.get_running_loop()
        until = loop.time() + self._left_s
        try:
            async with asyncio.timeout_at(until):
                found = await self._look_at(passages, self._turns, until=until)
        except TimeoutError:
            return f"the reranker was not done within {round(self._deadline_s * 1e3)} ms"
        except Unavailable as error:
            return str(error)
        finally:
            self._left_s = until - loop.time()
        self._known.update(zip((passage.ref for passage in passages), found, strict=True))
        return None

    async def _look_at(
        self, passages: Sequence[Passage], turns: RerankTurns, *, until: float
    ) -> list[tuple[float, float]]:
        """The relevance of each passage and the cosine of its nearest part. Raises: Unavailable."""
        texts = [passage.text for passage in passages]
        if self._parts is None:
            return [(each, 0.0) for each in await turns.rerank(self._query, texts, until=until)]
        try:
            async with asyncio.TaskGroup() as group:  # where there are cores for it, the one costs no time
                relevance = group.create_task(turns.rerank(self._query, texts, until=until), name="rerank")
                nearest = group.create_task(self._parts.of(passages), name="nearest-parts")
        except* Unavailable as errors:
            failure = errors.exceptions[0]
        else:
            return list(zip(relevance.result(), nearest.result(), strict=True))
        raise failure
