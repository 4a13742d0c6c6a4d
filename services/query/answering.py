"""From a question to an answer that stands on cited sources, or to whom to ask instead.

The nine steps of spec 2: model, context, budget, prompt, draft, citations, confidence, action, response; then the
evidence is kept, which is the last look at the sources before anything leaves. One path serves whole answers and
streams: a whole answer is a stream that was waited for.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from functools import lru_cache

from dats_common.domain import extractive
from dats_common.domain.access import Principal
from dats_common.domain.answerability import answerability
from dats_common.domain.budget import BudgetRules, ModelLimits, allocate
from dats_common.domain.citations import Issued, MarkerStream, Resolved, resolve
from dats_common.domain.claims import NO_OPINIONS, Claim, judge_claims, only_supported
from dats_common.domain.confidence import NO_CONFIDENCE, Action, Confidence, action_for, confidence
from dats_common.domain.grounding import Grounding, Pair
from dats_common.domain.location import section_of
from dats_common.domain.model import ArtifactKey, ChunkRef
from dats_common.domain.prompt import (
    INSUFFICIENT,
    INSUFFICIENT_CONTEXT,
    Message,
    PromptSource,
    build_messages,
    prompt_hash,
    show_source,
)
from dats_common.domain.quality import QualityRules, select
from dats_common.domain.route_target import (
    NO_TAGS,
    RouteTarget,
    nothing_found,
    primary_tag,
    to_admin,
    to_owner,
)
from dats_common.domain.tokens import CountBasis
from dats_common.errors import (
    ContextError,
    ContextTruncatedError,
    DeadlineExceeded,
    LLMConnectionError,
    ModelNotAllowedError,
    ModelUnavailableError,
    Unavailable,
)
from dats_common.ports import Evidence, Generator, Ledger, Owners, SupportScorer, TokenCounter
from dats_common.records import AnswerRecord, Assignment, Drafted, Scored, SearchFilter
from services.query.engine import Hit, QueryEngine, Question

LOOK_EVERY_S = 0.2
"""Between two looks at the sources while a draft is shown as it is written."""
_ATTEMPTS = 3
"""A source that falls while its answer is written costs one."""
_ANY_BUDGET_TOKENS = 1_000_000
_MODE = "hybrid"


@dataclass(frozen=True, slots=True)
class AnswerRules:
    """What the settings fix.

    Attributes:
        models: the allowlist, by name as requests name them.
        threshold: least confidence in percent to cite.
        least_answerability: below it the sources do not seem to hold an answer, whatever the model says; in [0, 1].
        retrieval_s: longest time for finding the sources, as for any query.
    """

    models: Mapping[str, ModelLimits]
    default_model: str
    temperature: float
    threshold: float
    least_answerability: float
    retrieval_s: float
    admin_email: str
    budget: BudgetRules
    quality: QualityRules

    def allowed(self, model: str) -> str:
        """The name that the allowlist has for it: without a tag, `:latest` is meant. Raises: ModelNotAllowedError."""
        for name in (model, model.removesuffix(":latest"), f"{model}:latest"):
            if name in self.models:
                return name
        raise ModelNotAllowedError(f"model {model!r} is not in the allowlist: {', '.join(sorted(self.models))}")


@dataclass(frozen=True, slots=True)
class Ask:
    """A question, who asks, and what it may take.

    Attributes:
        history: the conversation so far, the oldest first; nobody's but the user's and the assistant's.
        strict: leave out every sentence that its sources do not support.
    """

    text: str
    principal: Principal
    actor: str
    history: tuple[Message, ...] = ()
    model: str | None = None
    wanted_chunks: int = 5
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that may leave: its evidence is kept and its sources stood at that moment.

    Attributes:
        answerability: whether the sources seem to hold an answer at all, in [0, 1]; no part of the confidence.
        citations: the hits that the text cites, in the order of their first mention.
        refused_markers: citations that were removed, because nobody had issued them.
    """

    answer_id: str
    text: str
    confidence: Confidence
    answerability: float
    citations: tuple[Hit, ...]
    claims: tuple[Claim, ...]
    action: Action
    route_to: RouteTarget | None
    model_used: str
    chunks_used: int
    context_tokens: int
    generation_ms: float
    refused_markers: int = 0

    @property
    def grounded(self) -> bool:
        """Whether it cites at least one source."""
        return bool(self.citations)


@dataclass(frozen=True, slots=True)
class Found:
    """The sources that the model is given, before it writes."""

    answer_id: str
    model: str
    hits: tuple[Hit, ...]


@dataclass(frozen=True, slots=True)
class Cited:
    """A source that the text has just cited for the first time."""

    hit: Hit


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """A source fell while the answer was written: what was shown of it must be taken back."""

    answer_id: str
    fallen: tuple[ArtifactKey, ...]


Happening = Found | str | Cited | Answer | Withdrawn
"""What becomes known while an answer is made; a string is text that may be shown."""


@dataclass(frozen=True, slots=True)
class _Prompt:
    """What the model is sent, and what its aliases stand for."""

    assignment: Assignment
    issued: Issued
    hits: tuple[Hit, ...]
    counted_tokens: int
    basis: CountBasis
    context_tokens: int

    @property
    def context(self) -> str:
        return "\n".join(hit.passage.text for hit in self.hits)

    def hit_of(self, source_id: str) -> Hit:
        return next(hit for hit in self.hits if hit.passage.ref.source_id == source_id)


@dataclass(frozen=True, slots=True)
class _Weighed:
    """What is left of a draft, and what it claims.

    Attributes:
        doubt: why a strict answer cannot be relied on, whatever is left of it; empty where nothing speaks against it.
    """

    resolved: Resolved
    claims: tuple[Claim, ...]
    doubt: str = ""


def new_answer_id() -> str:
    """Names an answer that nobody else has named."""
    return f"ans-{uuid.uuid4()}"


class AnswerEngine:
    """Stateless between questions, as retrieval is; answers are kept in the ledger."""

    def __init__(
        self,
        *,
        retrieval: QueryEngine,
        generator: Generator,
        fallback: Generator | None,
        counter: TokenCounter,
        ledger: Ledger,
        evidence: Evidence,
        owners: Owners,
        rules: AnswerRules,
        body_of: Callable[[Answer], Mapping[str, object]],
        scorer: SupportScorer | None = None,
        judge_for: Callable[[Assignment], SupportScorer] | None = None,
        look_every_s: float = LOOK_EVERY_S,
    ) -> None:
        """Put the parts together.

        Args:
            scorer: looks at every claim that cites something; None: shared words and guards decide alone.
            judge_for: who judges the claims of a strict answer to such an assignment, if the generator wrote it; the
                fallback quotes, and needs no judge.
        """
        self._retrieval = retrieval
        self._generator = generator
        self._fallback = fallback
        self._counter = counter
        self._ledger = ledger
        self._evidence = evidence
        self._owners = owners
        self._rules = rules
        self._body_of = body_of
        self.scorer = scorer
        self._judge_for = judge_for
        self._look_every_s = look_every_s
        # Rules and sources come again; a better basis counts anew.
        self._counted = lru_cache(maxsize=1024)(lambda text, model, basis: counter.count(text, model=model))

    async def answer(self, ask: Ask) -> Answer:
        """A whole answer; where a source falls meanwhile it is written again from what stands.

        Raises: ModelNotAllowedError, TokenBudgetExceededError, LLMConnectionError, LLMTimeoutError, ContextError,
            LedgerUnavailable, IndexUnavailable, EncoderUnavailable, DeadlineExceeded.
        """
        for _ in range(_ATTEMPTS):
            async with aclosing(self.happenings(ask, answer_id=new_answer_id(), shown=False)) as happenings:
                async for happening in happenings:
                    if isinstance(happening, Answer):
                        return happening
        raise ContextError(f"sources were withdrawn while the answer was written, {_ATTEMPTS} times")

    async def happenings(self, ask: Ask, *, answer_id: str, shown: bool = True) -> AsyncGenerator[Happening]:
        """An answer as it is made. The last one is an `Answer`, or `Withdrawn`. Closing it early stops the model.

        Args:
            shown: whether somebody reads along; if not, nothing comes between the sources and the end.

        Raises: as `answer`.
        """
        started = time.perf_counter()
        model = self._rules.allowed(ask.model or self._rules.default_model)
        limits = self._rules.models[model]
        generator = await self._generator_for(model)
        hits = await self._retrieve(ask)
        if not hits:
            made = await self._without_context(ask, answer_id, self._named(generator, model), started)
            yield Found(answer_id, made.model_used, ())
            yield made.text
            yield made
            return
        prompt = self._prompt(ask, hits, model=model, limits=limits)
        if not prompt.hits:
            raise ContextError("no source fits the model's window beside rules, question and conversation")
        yield Found(answer_id, self._named(generator, model), prompt.hits)
        draft = _Draft(
            prompt,
            generator,
            stands=self._stands(prompt, ask.principal),
            look_every_s=self._look_every_s,
            shown=shown and not ask.strict,  # which sentences stay in a strict one is known only at the end
        )
        judged: Answer | None = None
        async with self._while_it_stands(draft, watched=shown):
            async with aclosing(self._write(model, draft)) as written:
                async for each in written:
                    yield each
            self._require_whole(prompt, draft)
            judged = await self._judge(ask, answer_id, prompt, draft, started)
        # Where a source fell meanwhile it is kept as withdrawn, and no model is asked for that.
        made = judged or await self._judge(ask, answer_id, prompt, draft, started)
        if fallen := await self._keep(ask, made, prompt, draft):
            yield Withdrawn(answer_id, fallen)
            return
        if ask.strict:
            yield made.text
            for hit in made.citations:
                yield Cited(hit)
        yield made

    async def _write(self, model: str, draft: _Draft) -> AsyncGenerator[str | Cited]:
        """What may be shown of a draft while it is written. One that has not begun when its server goes away is given
        to the fallback."""
        while True:
            try:
                async with aclosing(draft.generator.generate(draft.prompt.assignment)) as pieces:
                    async for piece in pieces:
                        for each in await draft.take(piece):
                            yield each
                        if draft.fell:
                            break
                break
            except LLMConnectionError:
                instead = draft.generator if draft.text else await self._generator_for(model)
                if instead is draft.generator:
                    raise
                draft.generator = instead
        for each in draft.rest():
            yield each

    @asynccontextmanager
    async def _while_it_stands(self, draft: _Draft, *, watched: bool) -> AsyncIterator[None]:
        """End the block early once a source has fallen: a model may take seconds for a token or a rating, and what was
        shown must be taken back meanwhile. What is awaited then is cancelled, so that who iterates over happenings with
        a watch on them must await nothing else in between.
        """
        try:
            async with asyncio.timeout(None) as limit:
                watcher = asyncio.create_task(self._watch(draft, limit)) if watched else None
                try:
                    yield
                finally:
                    if watcher:
                        watcher.cancel()
        except TimeoutError:
            if not draft.fell:
                raise

    async def _watch(self, draft: _Draft, limit: asyncio.Timeout) -> None:
        while not draft.fell:
            await asyncio.sleep(self._look_every_s)
            try:
                await draft.look()
            except Unavailable:
                continue  # Nothing is kept without the ledger, and what is not kept does not leave.
        limit.reschedule(asyncio.get_running_loop().time())

    # ------------------------------------------------------------------------------------------------- before the draft

    def _named(self, generator: Generator, model: str) -> str:
        """Who writes, for people."""
        return extractive.MODEL if generator is self._fallback else model

    async def _generator_for(self, model: str) -> Generator:
        try:
            await self._generator.require(model)
        except ModelUnavailableError:
            raise  # the server answers, and somebody should pull the model
        except LLMConnectionError:
            if self._fallback is None:
                raise
            return self._fallback
        return self._generator

    async def _retrieve(self, ask: Ask) -> list[Hit]:
        quality = self._rules.quality
        question = Question(
            text=ask.text,
            mode=_MODE,
            where=SearchFilter(principal=ask.principal),
            top_k=quality.candidates(ask.wanted_chunks),
            budget_tokens=_ANY_BUDGET_TOKENS,
        )
        try:
            async with asyncio.timeout(self._rules.retrieval_s):
                found = await self._retrieval.retrieve(question)
        except TimeoutError as error:
            raise DeadlineExceeded(f"no sources within {self._rules.retrieval_s} s") from error
        return select(found.hits, rules=quality, wanted=ask.wanted_chunks)

    def _prompt(self, ask: Ask, hits: Sequence[Hit], *, model: str, limits: ModelLimits) -> _Prompt:
        basis = self._counter.basis(model)
        sources = [_prompt_source(alias, hit) for alias, hit in enumerate(hits, start=1)]
        # Each part once: counting is what costs here, and tokens do not reach across the lines between the parts.
        source_tokens = [self._counted(f"{show_source(source)}\n\n", model, basis) for source in sources]
        ours, *history, asked = build_messages(ask.text, sources=(), history=ask.history)
        history_tokens = [self._counter.count(each.content, model=model) for each in history]
        asked_tokens = self._counter.count(asked.content, model=model)
        fixed_tokens = self._counted(ours.content, model, basis) + asked_tokens + basis.prompt_tokens
        allocation = allocate(
            fixed_tokens=basis.at_most(fixed_tokens),
            history_tokens=[basis.at_most(tokens + basis.conversation_tokens(1)) for tokens in history_tokens],
            source_tokens=[basis.at_most(tokens) for tokens in source_tokens],
            limits=limits,
            rules=self._rules.budget,
        )
        used = [hits[position] for position in allocation.sources]
        shown = tuple(_prompt_source(alias, hit) for alias, hit in enumerate(used, start=1))
        first_kept = len(ask.history) - allocation.history
        messages = build_messages(ask.text, sources=shown, history=ask.history[first_kept:])
        context_tokens = sum(source_tokens[position] for position in allocation.sources)
        return _Prompt(
            assignment=Assignment(
                question=ask.text,
                messages=messages,
                sources=shown,
                model=model,
                window_tokens=limits.context_window,
                max_response_tokens=allocation.response_tokens,
                temperature=self._rules.temperature,
            ),
            issued=Issued.of(source.source_id for source in shown),
            hits=tuple(used),
            counted_tokens=fixed_tokens
            + sum(history_tokens[first_kept:])
            + basis.conversation_tokens(allocation.history)
            + context_tokens,
            basis=basis,
            context_tokens=context_tokens,
        )

    def _stands(self, prompt: _Prompt, principal: Principal) -> Callable[[], Awaitable[bool]]:
        refs = [hit.passage.ref for hit in prompt.hits]

        async def stands() -> bool:
            return len(await self._ledger.still_live(refs, principal)) == len(refs)

        return stands

    # -------------------------------------------------------------------------------------------------- after the draft

    def _require_whole(self, prompt: _Prompt, draft: _Draft) -> None:
        """Raises: ContextTruncatedError: by its own count the model cannot have read all of the prompt."""
        evaluated = draft.end.prompt_tokens if draft.end else None
        if evaluated is not None and prompt.basis.was_cut(counted=prompt.counted_tokens, evaluated=evaluated):
            raise ContextTruncatedError(
                f"the model read {evaluated} tokens of a prompt of about {prompt.counted_tokens}: its window was cut"
            )

    async def _judge(self, ask: Ask, answer_id: str, prompt: _Prompt, draft: _Draft, started: float) -> Answer:
        generator = draft.generator
        judge = self._judge_for(prompt.assignment) if self._judge_for and generator is self._generator else None
        weighed = await self._weigh(ask, prompt, draft, judge=judge)
        resolved, claims = weighed.resolved, weighed.claims
        rating = None if draft.fell else await generator.rate(prompt.assignment, resolved.text)
        score = confidence(
            [hit.similarity for hit in prompt.hits], answer=resolved.text, context=prompt.context, rating=rating
        )
        answerable = answerability(ask.text, prompt.assignment.sources)
        action, why = self._act(score, weighed, answerable)
        return Answer(
            answer_id=answer_id,
            text=resolved.text,
            confidence=score,
            answerability=answerable,
            citations=tuple(prompt.hit_of(source_id) for source_id in resolved.source_ids),
            claims=claims,
            action=action,
            route_to=await self._route(ask, prompt.hits, why=why) if action == "ROUTE" else None,
            model_used=draft.end.model if draft.end else prompt.assignment.model,
            chunks_used=len(prompt.hits),
            context_tokens=prompt.context_tokens,
            generation_ms=(time.perf_counter() - started) * 1e3,
            refused_markers=resolved.refused,
        )

    async def _weigh(self, ask: Ask, prompt: _Prompt, draft: _Draft, *, judge: SupportScorer | None) -> _Weighed:
        """The draft's claims, by all opinions that are to be had; of a strict answer only what is supported is left."""
        resolved = resolve(draft.text, prompt.issued)
        if not draft.fell and not resolved.text.strip():
            raise LLMConnectionError("the model wrote nothing")
        texts = {hit.passage.ref.source_id: hit.passage.text for hit in prompt.hits}
        grounding = Grounding()
        claims = judge_claims(resolved, texts, grounding=grounding)
        opinions, doubt = NO_OPINIONS, ""
        if self.scorer and not draft.fell:
            asked = [claim.pair for claim in claims if claim.source_ids]
            opinions = replace(opinions, similarities=_by_pair(asked, await self.scorer.score(asked)))
            claims = judge_claims(resolved, texts, opinions, grounding=grounding)
        if not ask.strict:
            return _Weighed(resolved, claims)
        if judge and not draft.fell:
            asked = list(dict.fromkeys(claim.pair for claim in claims if claim.supported))
            scored = await judge.score(asked)
            opinions = replace(opinions, verdicts=_by_pair(asked, scored))
            claims = judge_claims(resolved, texts, opinions, grounding=grounding)
            if unjudged := scored.scores.count(None):
                doubt = f"{unjudged} of {len(asked)} statements could not be judged: {scored.trouble}"
        resolved, claims = only_supported(resolved, claims, texts, prompt.issued, opinions, grounding=grounding)
        if not claims:
            resolved = replace(resolve(INSUFFICIENT, prompt.issued), refused=resolved.refused)
        return _Weighed(resolved, claims, doubt)

    def _act(self, score: Confidence, weighed: _Weighed, answerable: float) -> tuple[Action, str]:
        """Whether the answer may be cited; if not, why."""
        if weighed.doubt:
            return "ROUTE", weighed.doubt
        if not weighed.resolved.source_ids:
            return "ROUTE", "No source is cited"
        if action_for(score, threshold=self._rules.threshold) == "ROUTE":
            return "ROUTE", f"Low confidence: {score.overall}%"
        if not any(claim.supported for claim in weighed.claims):
            return "ROUTE", "No statement is supported by the source that it cites"
        if answerable < self._rules.least_answerability:
            return "ROUTE", "The sources do not seem to answer the question"
        return "CITE", ""

    async def _route(self, ask: Ask, hits: Sequence[Hit], *, why: str) -> RouteTarget:
        admin_email = self._rules.admin_email
        tag = primary_tag([hit.passage.metadata.tags for hit in hits])
        if tag is None:
            return to_admin(admin_email=admin_email, why=f"{why}. {NO_TAGS}")
        owner = await self._owners.owner_of(tag, tenant_id=ask.principal.tenant_id)
        if owner is None or owner.user_id is None:
            return to_admin(admin_email=admin_email, why=f"{why}. No owner for tag '{tag}'")
        if owner.email is None:
            return to_admin(admin_email=admin_email, why=f"{why}. Owner not found for tag '{tag}'")
        return to_owner(tag, user_id=owner.user_id, email=owner.email, why=why)

    async def _without_context(self, ask: Ask, answer_id: str, model: str, started: float) -> Answer:
        made = Answer(
            answer_id=answer_id,
            text=INSUFFICIENT_CONTEXT,
            confidence=NO_CONFIDENCE,
            answerability=0.0,
            citations=(),
            claims=(),
            action="ROUTE",
            route_to=nothing_found(admin_email=self._rules.admin_email),
            model_used=model,
            chunks_used=0,
            context_tokens=0,
            generation_ms=(time.perf_counter() - started) * 1e3,
        )
        await self._evidence.keep(self._record(ask, made, prompt=None, end=None))
        return made

    async def _keep(self, ask: Ask, made: Answer, prompt: _Prompt, draft: _Draft) -> tuple[ArtifactKey, ...]:
        return await self._evidence.keep(self._record(ask, made, prompt=prompt, end=draft.end))

    def _record(self, ask: Ask, made: Answer, *, prompt: _Prompt | None, end: Drafted | None) -> AnswerRecord:
        refs: tuple[ChunkRef, ...] = tuple(hit.passage.ref for hit in prompt.hits) if prompt else ()
        return AnswerRecord(
            answer_id=made.answer_id,
            tenant_id=ask.principal.tenant_id,
            actor=ask.actor,
            user_id=ask.principal.user_id,
            project_ids=ask.principal.project_ids,
            tags=ask.principal.tags,
            question=ask.text,
            model=made.model_used,
            prompt_hash=prompt_hash(prompt.assignment.messages) if prompt else "",
            counted_tokens=prompt.counted_tokens if prompt else 0,
            counted_by=prompt.basis.stated if prompt else "",
            prompt_tokens=end.prompt_tokens if end else None,
            response_tokens=end.response_tokens if end else None,
            confidence=made.confidence.overall,
            action=made.action,
            refs=refs,
            body=self._body_of(made),
        )


class _Draft:
    """What the model has written so far, and how much of it may be shown."""

    def __init__(
        self,
        prompt: _Prompt,
        generator: Generator,
        *,
        stands: Callable[[], Awaitable[bool]],
        look_every_s: float,
        shown: bool,
    ) -> None:
        self.prompt = prompt
        self.generator = generator
        self._stands = stands
        self._look_every_s = look_every_s
        self._is_shown = shown
        self._markers = MarkerStream(prompt.issued)
        self._raw: list[str] = []
        self._looked_s = time.monotonic()
        self.end: Drafted | None = None
        self.fell = False

    @property
    def text(self) -> str:
        """As the model wrote it, markers and all."""
        return "".join(self._raw)

    async def take(self, piece: str | Drafted) -> list[str | Cited]:
        """What may be shown now; nothing once a source has fallen."""
        if isinstance(piece, Drafted):
            self.end = piece
            return []
        self._raw.append(piece)
        await self.look()
        return self._shown(self._markers.feed(piece)) if self._is_shown and not self.fell else []

    async def look(self) -> None:
        """Whether all sources stand still; not more often than is needed."""
        if not self.fell and time.monotonic() - self._looked_s >= self._look_every_s:
            self.fell = not await self._stands()
            self._looked_s = time.monotonic()

    def rest(self) -> list[str | Cited]:
        """What was held back as a possible marker."""
        return self._shown(self._markers.finish()) if self._is_shown and not self.fell else []

    def _shown(self, text: str) -> list[str | Cited]:
        new = [Cited(self.prompt.hit_of(source_id)) for source_id in self._markers.new_citations()]
        return [*([text] if text else []), *new]


def _by_pair(asked: Sequence[Pair], scored: Scored) -> dict[Pair, float]:
    return {pair: score for pair, score in zip(asked, scored.scores, strict=True) if score is not None}


def _prompt_source(alias: int, hit: Hit) -> PromptSource:
    metadata = hit.passage.metadata
    return PromptSource(
        alias=alias,
        source_id=hit.passage.ref.source_id,
        document_name=metadata.title or hit.passage.ref.key.artifact_id,
        text=hit.passage.text,
        similarity=hit.similarity,
        page_number=hit.passage.location.page,
        section=section_of(hit.passage.location),
    )
