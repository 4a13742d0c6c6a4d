"""From a question to an answer that stands on cited sources, or to whom to ask instead.

The nine steps of spec 2: model, context, budget, prompt, draft, citations, confidence, action, response; then the
evidence is kept, which is the last look at the sources before anything leaves. One path serves whole answers and
streams: a whole answer is a stream that was waited for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from dats_common.domain import extractive
from dats_common.domain.access import Principal
from dats_common.domain.answerability import answerability
from dats_common.domain.budget import BudgetRules, ModelLimits
from dats_common.domain.citations import Resolved, resolve
from dats_common.domain.claims import NO_OPINIONS, Claim, judge_claims, only_supported
from dats_common.domain.confidence import NO_CONFIDENCE, Action, Confidence, action_for, confidence
from dats_common.domain.grounding import Grounding, Pair
from dats_common.domain.model import ArtifactKey, ChunkRef
from dats_common.domain.prompt import (
    INSUFFICIENT,
    INSUFFICIENT_CONTEXT,
    prompt_hash,
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
from dats_common.errors import (
    ContextError,
    ContextTruncatedError,
    DeadlineExceeded,
    LLMConnectionError,
    ModelNotAllowedError,
    ModelUnavailableError,
    Unavailable,
)
from dats_common.ports import Evidence, Generator, Guard, Owners, SupportScorer, TokenCounter
from dats_common.records import AnswerRecord, Assignment, Drafted, Scored, SearchFilter
from services.query.drafting import Draft
from services.query.engine import Hit, Question, Retrieval
from services.query.happenings import Answer, Ask, Cited, Found, Happening, Withdrawn, new_answer_id
from services.query.prompting import Prompt, PromptBuilder

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
class _Weighed:
    """What is left of a draft, and what it claims.

    Attributes:
        doubt: why a strict answer cannot be relied on, whatever is left of it; empty where nothing speaks against it.
    """

    resolved: Resolved
    claims: tuple[Claim, ...]
    doubt: str = ""


class Answering(Protocol):
    """What routes and streams need of the engine."""

    scorer: SupportScorer | None

    async def answer(self, ask: Ask) -> Answer:
        """See `AnswerEngine`."""

    def happenings(self, ask: Ask, *, answer_id: str, shown: bool = True) -> AsyncGenerator[Happening]:
        """See `AnswerEngine`."""


class AnswerEngine:
    """Stateless between questions, as retrieval is; answers are kept in the ledger."""

    def __init__(
        self,
        *,
        retrieval: Retrieval,
        generator: Generator,
        fallback: Generator | None,
        counter: TokenCounter,
        ledger: Guard,
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
        self._ledger = ledger
        self._evidence = evidence
        self._owners = owners
        self._rules = rules
        self._body_of = body_of
        self.scorer = scorer
        self._judge_for = judge_for
        self._look_every_s = look_every_s
        self._prompts = PromptBuilder(counter=counter, budget=rules.budget, temperature=rules.temperature)

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
        hits = await self._retrieve(ask, shown=shown)
        if not hits:
            made = await self._without_context(ask, answer_id, self._named(generator, model), started)
            yield Found(answer_id, made.model_used, ())
            yield made.text
            yield made
            return
        prompt = self._prompts.build(ask, hits, model=model, limits=limits)
        if not prompt.hits:
            raise ContextError("no source fits the model's window beside rules, question and conversation")
        yield Found(answer_id, self._named(generator, model), prompt.hits)
        draft = Draft(
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

    async def _write(self, model: str, draft: Draft) -> AsyncGenerator[str | Cited]:
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
    async def _while_it_stands(self, draft: Draft, *, watched: bool) -> AsyncIterator[None]:
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

    async def _watch(self, draft: Draft, limit: asyncio.Timeout) -> None:
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

    async def _retrieve(self, ask: Ask, *, shown: bool) -> list[Hit]:
        quality = self._rules.quality
        question = Question(
            text=ask.text,
            mode=_MODE,
            where=SearchFilter(principal=ask.principal),
            top_k=quality.candidates(ask.wanted_chunks),
            budget_tokens=_ANY_BUDGET_TOKENS,
            looked_at_again=not shown,  # by the evidence, when it is kept; what is shown leaves before
            rerank=False,  # not measured for answers, and they name no domain
            least_similarity=quality.min_similarity,
        )
        try:
            async with asyncio.timeout(self._rules.retrieval_s):
                found = await self._retrieval.retrieve(question)
        except TimeoutError as error:
            raise DeadlineExceeded(f"no sources within {self._rules.retrieval_s} s") from error
        return select(found.hits, rules=quality, wanted=ask.wanted_chunks)

    def _stands(self, prompt: Prompt, principal: Principal) -> Callable[[], Awaitable[bool]]:
        refs = [hit.passage.ref for hit in prompt.hits]

        async def stands() -> bool:
            return len(await self._ledger.still_live(refs, principal)) == len(refs)

        return stands

    # -------------------------------------------------------------------------------------------------- after the draft

    def _require_whole(self, prompt: Prompt, draft: Draft) -> None:
        """Raises: ContextTruncatedError: by its own count the model cannot have read all of the prompt."""
        evaluated = draft.end.prompt_tokens if draft.end else None
        if evaluated is not None and prompt.basis.was_cut(counted=prompt.counted_tokens, evaluated=evaluated):
            raise ContextTruncatedError(
                f"the model read {evaluated} tokens of a prompt of about {prompt.counted_tokens}: its window was cut"
            )

    async def _judge(self, ask: Ask, answer_id: str, prompt: Prompt, draft: Draft, started: float) -> Answer:
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

    async def _weigh(self, ask: Ask, prompt: Prompt, draft: Draft, *, judge: SupportScorer | None) -> _Weighed:
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

    async def _keep(self, ask: Ask, made: Answer, prompt: Prompt, draft: Draft) -> tuple[ArtifactKey, ...]:
        return await self._evidence.keep(self._record(ask, made, prompt=prompt, end=draft.end))

    def _record(self, ask: Ask, made: Answer, *, prompt: Prompt | None, end: Drafted | None) -> AnswerRecord:
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


def _by_pair(asked: Sequence[Pair], scored: Scored) -> dict[Pair, float]:
    return {pair: score for pair, score in zip(asked, scored.scores, strict=True) if score is not None}
