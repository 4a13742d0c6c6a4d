"""What is asked, and what becomes known while an answer to it is made."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from dats_common.domain.access import Principal
from dats_common.domain.claims import Claim
from dats_common.domain.confidence import Action, Confidence
from dats_common.domain.model import ArtifactKey
from dats_common.domain.prompt import Message
from dats_common.domain.route_target import RouteTarget
from services.query.engine import Hit


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


def new_answer_id() -> str:
    """Names an answer that nobody else has named."""
    return f"ans-{uuid.uuid4()}"
