"""Every port of the service on one page. Adapters implement them; engine, handlers and pipeline see only these.

Each port has an in-memory or laptop twin that ships in the package and passes the same tests (tests/ports).
All calls that wait are bounded in seconds by the adapter's settings; what they raise is in `dats_common.errors`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Literal, Protocol

from dats_common.domain.access import Caller, Principal
from dats_common.domain.grounding import Pair
from dats_common.domain.model import (
    ArtifactKey,
    Chunk,
    ChunkRef,
    Generation,
    SparseVector,
    Taint,
    Validated,
)
from dats_common.domain.taint import FlipVerdict
from dats_common.domain.tokens import CountBasis
from dats_common.records import (
    Admission,
    AnswerRecord,
    ArtifactOutcome,
    Assignment,
    AuditEntry,
    Candidate,
    DeadLetter,
    Delivery,
    Drafted,
    Fingerprint,
    GuardedRead,
    Heartbeat,
    IndexJob,
    KeptAnswer,
    LedgerCounts,
    LiveGeneration,
    Point,
    Quarantined,
    Scored,
    SearchFilter,
    StoredKey,
    TagOwner,
    TaintReceipt,
    User,
    Withdrawn,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


# --------------------------------------------------------------------------------------------------------- encoder


class Encoder(Protocol):
    """Text to dense vectors, off the event loop."""

    @property
    def model(self) -> str:
        """The model's name, the same for every backend of it."""

    @property
    def backend(self) -> str:
        """What runs it and where, for people: `openvino:cpu:fp32`, `sentence-transformers:cuda:0`."""

    @property
    def dimension(self) -> int:
        """Length of a vector."""

    @property
    def max_tokens(self) -> int:
        """The model's window in its own tokens, special tokens included."""

    async def encode(self, texts: Sequence[str], *, kind: Literal["query", "document"]) -> npt.NDArray[np.float32]:
        """Vectors of shape (len(texts), dimension), float32, L2-normalised, in the order of `texts`.

        A text's vector does not depend on the other texts of the call.
        Raises: EncoderUnavailable.
        """

    def token_spans(self, text: str) -> list[tuple[int, int]]:
        """Character spans of the model's tokens in `text`, without special tokens, in order."""


# -------------------------------------------------------------------------------------------------------- reranker


class Reranker(Protocol):
    """Reads a query and a passage together and says how relevant the passage is, off the event loop.

    It orders what the guard let through, and decides nothing.
    """

    @property
    def model(self) -> str:
        """The model's name or folder."""

    async def rerank(self, query: str, passages: Sequence[str]) -> list[float]:
        """The relevance of each passage, in [0, 1], in the order of `passages`.

        It does not depend on the other passages of the call, nearly: 1e-5. The deadline is the caller's: what is
        cancelled is dropped where it has not begun. Raises: RerankerUnavailable.
        """

    async def ping(self) -> None:
        """Raises: RerankerUnavailable: nothing can be reranked."""


# ----------------------------------------------------------------------------------------------------------- index


Leg = Literal["dense", "sparse"]


class Index(Protocol):
    """Proposes candidates; decides nothing. It can be lost and rebuilt from the ledger."""

    async def prepare(self, fingerprint: Fingerprint) -> None:
        """Create the collection and its payload indexes, or check that its fingerprint agrees.

        Raises: ConfigurationError: the collection was written by another model; says what to do.
        """

    async def store(self, points: Sequence[Point]) -> None:
        """Upsert; returns once the points are durable and searchable.

        Raises: InvalidInput: a vector of the wrong length or not finite (nothing is stored); IndexUnavailable.
        """

    async def search(
        self,
        *,
        dense: npt.NDArray[np.float32],
        sparse: SparseVector | None,
        legs: frozenset[Leg],
        where: SearchFilter,
        limit: int,
    ) -> list[Candidate]:
        """Up to `limit` candidates of each leg, merged by chunk, in one round trip.

        Args:
            dense: the query's vector; needed in every mode, for the similarity of keyword hits too.
            sparse: the query's terms; None when it has none (then the sparse leg is empty).

        Ties within a leg are broken by source id, then generation; never by point id.
        Raises: IndexUnavailable.
        """

    async def generations(self, keys: Sequence[ArtifactKey]) -> dict[ArtifactKey, set[int]]:
        """The generations that have points, for each key that has any."""

    def scan(self) -> AsyncIterator[dict[ArtifactKey, set[int]]]:
        """All generations of all artifacts, page by page (an artifact may come in several pages)."""

    async def remove(self, key: ArtifactKey, generations: Sequence[int]) -> None:
        """Delete the points of exactly these generations; returns once they read back as gone."""

    async def count(self) -> int:
        """Number of points."""

    async def drop(self) -> None:
        """Delete the collection (before a rebuild)."""

    async def ping(self) -> None:
        """Raises: IndexUnavailable."""


class Indexer(Protocol):
    """The writer's pipeline: chunk, embed, store points in the index and chunk rows in the ledger."""

    async def index(self, jobs: Sequence[IndexJob]) -> Mapping[int, int | Exception]:
        """Generation number -> number of chunks stored, or what went wrong with that one alone."""


# ---------------------------------------------------------------------------------------------------------- ledger


class Guard(Protocol):
    """The ledger's part in a search: what is not asked of it is not shown."""

    async def read(self, refs: Sequence[ChunkRef], principal: Principal) -> GuardedRead:
        """Q2: text and metadata of those chunks that are live and visible to the principal, in one statement."""

    async def still_live(self, refs: Sequence[ChunkRef], principal: Principal) -> frozenset[ChunkRef]:
        """Q3: those whose generation is live now; of the principal's tenant or public, as `read` found them.

        Raises: LedgerUnavailable; then nothing may be served.
        """


class Ledger(Guard, Protocol):
    """The authority: what is live, every chunk's text, and the outbox. See docs/architecture.md for the steps."""

    # -- the single active writer (fenced by epoch)
    async def activate(self, writer_id: str) -> int:
        """Take over: raise the epoch and reclaim the pending generations of earlier ones. Returns the new epoch."""

    async def admit(self, events: Sequence[Validated], *, epoch: int) -> list[Admission]:
        """V1 for several events of different artifacts, in one transaction.

        Raises: Fenced; LedgerUnavailable. ValueError: two events of one artifact in one call.
        """

    async def write_chunks(self, documents: Mapping[Generation, Sequence[Chunk]], *, embedding_model: str) -> None:
        """Chunk rows of pending generations, in one transaction; repeating it is harmless."""

    async def flip(self, admissions: Sequence[Admission], *, epoch: int) -> list[FlipVerdict]:
        """V4: make generations visible, each judged under its row's lock. Raises: Fenced; LedgerUnavailable."""

    async def abandon(self, generations: Sequence[int]) -> None:
        """Give up pending generations whose points could not be stored, so that the sweep may take them."""

    # -- any process
    async def taint(self, taint: Taint, *, skew_s: float) -> TaintReceipt:
        """T1: one transaction; invisible everywhere from its commit."""

    async def relay(self, publish: Publish, *, limit: int) -> int:
        """Publish unsent outbox events in order and mark them sent. Returns how many. Raises: BrokerUnavailable."""

    async def announce(self, envelope: Mapping[str, Any]) -> None:
        """Put one more event into the outbox (once for each envelope id)."""

    async def kept(self, keys: Sequence[ArtifactKey]) -> dict[ArtifactKey, set[int]]:
        """Generations that are live or pending, maybe none; an artifact that was never heard of has no entry.

        To be read AFTER the index's list, or a sweep could delete a newer one.
        """

    async def forget(self, keys: Sequence[ArtifactKey] | None = None) -> None:
        """Drop chunk rows of generations that are neither live nor pending; of all artifacts without `keys`."""

    async def beat(self, heartbeat: Heartbeat, *, epoch: int | None = None) -> None:
        """Record the writer's state.

        Args:
            epoch: under which it believes to be active; None: it does not.

        Raises: Fenced: the epoch is over, and nothing was recorded.
        """

    # -- readers
    async def now(self) -> int:
        """The ledger's clock as an ORD."""

    async def outcome(self, key: ArtifactKey, *, at: int) -> ArtifactOutcome:
        """What became of the event placed at `at` by the ledger's clock."""

    async def heartbeat(self) -> Heartbeat | None:
        """The newest heartbeat of an active writer."""

    async def counts(self) -> LedgerCounts:
        """Figures for health and metrics."""

    def live_chunks(self, *, after: ArtifactKey | None = None) -> AsyncIterator[tuple[Generation, Sequence[Chunk]]]:
        """Every live artifact with its chunks, ordered by key: what a rebuild of the index reads. Resumable."""

    async def ping(self) -> None:
        """Raises: LedgerUnavailable."""


# --------------------------------------------------------------------------------------------------------- answers


class Generator(Protocol):
    """Writes answers: a model server, or the extractive rule that needs none."""

    async def require(self, model: str) -> None:
        """Raises: ModelUnavailableError: no such model here; LLMConnectionError."""

    def generate(self, assignment: Assignment) -> AsyncGenerator[str | Drafted]:
        """The draft piece by piece, then exactly one `Drafted`. Closing it early stops the model.

        Raises: ModelUnavailableError, LLMConnectionError, LLMTimeoutError, ContextTruncatedError: the server says that
            the prompt does not fit. A draft that ends early never ends with `Drafted`.
        """

    async def rate(self, assignment: Assignment, answer: str) -> int | None:
        """How well the sources support the answer by the generator's own judgement, 0 to 100; None: it gave none.

        Never raises for a bad or late rating: an answer is not lost over it.
        """

    def second_calls(self) -> AbstractAsyncContextManager[Generator]:
        """A turn for what is asked about a draft that is done, one call after the other: it goes before drafts that
        wait. Raises: LLMTimeoutError: none came.
        """

    async def warm_up(self, model: str, *, window_tokens: int) -> None:
        """Have a model ready for its first answer. Raises: ModelUnavailableError, LLMConnectionError."""

    async def ping(self) -> None:
        """Raises: LLMConnectionError."""


class SupportScorer(Protocol):
    """How well texts bear a sentence out, by one way of looking at it; what follows is `domain.grounding`'s to say."""

    @property
    def name(self) -> str:
        """The way of looking, for metrics and health: `words`, `cross_encoder`, `judge`."""

    async def score(self, pairs: Sequence[Pair]) -> Scored:
        """A score for each pair, in their order; it does not depend on the other pairs of the call.

        Bounded in pairs and in seconds by the adapter. Never raises: an answer is not lost over it, so what could not
        be scored has None, and the reason is told beside.
        """

    async def ping(self) -> None:
        """Raises: Unavailable: there are no scores to be had."""


class TokenCounter(Protocol):
    """How many tokens a text has in a model's own tokens, counted here."""

    def count(self, text: str, *, model: str) -> int:
        """Tokens of the text alone, without what the model's chat template adds."""

    def basis(self, model: str) -> CountBasis:
        """What the model's counts rest on."""


class Evidence(Protocol):
    """Every answer and what it stands on, in the ledger's database."""

    async def keep(self, record: AnswerRecord) -> tuple[ArtifactKey, ...]:
        """Store an answer and judge its sources in one transaction, before anybody is given it.

        Returns the artifacts that are not live any more as the prompt showed them: if there are any, the answer must
        not leave; it is stored as withdrawn. Raises: LedgerUnavailable; then it must not leave either.
        """

    async def find(self, answer_id: str, principal: Principal, *, actor: str) -> KeptAnswer:
        """The answer, its sources judged now. Raises: NotFound: there is none, or it is another's; LedgerUnavailable.

        Args:
            actor: an answer is for whoever asked for it and for the same user, and for the tenant's admins where it
                was asked for no user; and only for those who may see at least what the asker could.
        """

    async def recall(
        self, keys: Sequence[ArtifactKey] | None = None, *, cascade_id: str | None = None, limit: int = 500
    ) -> int:
        """Queue `answer.recalled`, once for each answer that stood on what is withdrawn now. Returns how many.

        Args:
            keys: artifacts that have just fallen; None looks at every answer that stood so far.
            cascade_id: of the taint that made them fall, if it is known.
            limit: at most so many in one call; call again until it returns fewer.
        """

    async def forget(self, *, older_than_s: float, limit: int = 500) -> int:
        """Drop the oldest answers that were kept so long ago, and what they stood on. Returns how many; see `limit`."""


class Owners(Protocol):
    """Tags and the users who own them, by tenant, in the ledger's database."""

    async def owner_of(self, tag: str, *, tenant_id: str) -> TagOwner | None:
        """None: the tag has no entry."""

    async def list_tags(self, *, tenant_id: str) -> list[TagOwner]:
        """By name."""

    async def list_users(self, *, tenant_id: str) -> list[User]:
        """By id."""

    async def put(self, users: Sequence[User], tags: Sequence[TagOwner], *, tenant_id: str, actor: str) -> None:
        """Add or replace users and tags in one transaction; audited. Others stay as they are.

        Raises: InvalidInput: a tag names an owner whom nobody knows.
        """

    async def remove_tag(self, tag: str, *, tenant_id: str, actor: str) -> bool:
        """False: there was none."""

    async def remove_user(self, user_id: str, *, tenant_id: str, actor: str) -> bool:
        """False: there was none. Tags keep the id; their questions go to the admin until they have another owner."""


# -------------------------------------------------------------------------------------------------------- identity


class KeyStore(Protocol):
    """API keys and the audit, in the ledger's database. Nothing of it is cached: what is revoked is gone at once."""

    async def create(self, key: StoredKey, *, valid_s: float | None, actor: str) -> StoredKey:
        """Keep a new key, for `valid_s` seconds from now or until revoked; audited. Returns it with its times."""

    async def find(self, key_id: str) -> StoredKey | None:
        """The key as it is now. Raises: LedgerUnavailable; then nobody is let in."""

    async def list_keys(self) -> list[StoredKey]:
        """All keys, the oldest first; revoked and expired ones too."""

    async def revoke(self, key_id: str, *, actor: str) -> bool:
        """From the return on the key is good nowhere; audited. False: there is no such key. Repeating is harmless."""

    async def touch(self, key_id: str) -> None:
        """Remember that the key was used now."""

    async def record_refusal(self, key_id: str, *, reason: str) -> None:
        """Audit that a key was refused; the caller bounds how often."""

    async def audit(self, *, limit: int) -> list[AuditEntry]:
        """The newest entries first."""


class TokenVerifier(Protocol):
    """Tokens of an identity provider."""

    def verify(self, token: str) -> Caller:
        """Whom the token speaks for. Raises: Unauthenticated: anything at all is wrong with it."""


# ------------------------------------------------------------------------------------------------------------- bus


class Publish(Protocol):
    """Publish one event; returns once the broker has confirmed that a queue took it."""

    async def __call__(self, routing_key: str, body: Mapping[str, Any], *, event_id: str) -> None:
        """Raises: BrokerUnavailable: not confirmed in time, or no queue is bound."""


class Subscription(Protocol):
    """An open consumer with a bounded local buffer."""

    async def batch(self, *, max_items: int, max_wait_s: float) -> list[Delivery]:
        """Wait for a first delivery, then collect up to `max_items` for at most `max_wait_s` more seconds.

        Deliveries whose connection is gone are dropped: the broker brings them again. Returns [] only after `stop`.
        """

    async def ack(self, delivery: Delivery) -> None:
        """Done. Never raises for a lost connection: the message comes again and is a duplicate then."""

    async def retry(self, delivery: Delivery, *, delay_s: float) -> None:
        """Hand it back for a later try, counted; durable before the original is acknowledged."""

    async def give_back(self, delivery: Delivery) -> None:
        """Hand it back at once, not counted (fenced, or shutting down)."""

    async def hand_over(self, delivery: Delivery, *, queue: str) -> None:
        """Move it to another queue, type and attempt kept; durable there before the original is acknowledged."""

    async def dead_letter(self, delivery: Delivery, *, reason: str) -> None:
        """Move it to the dead letters with `x-reason`, `x-source-queue` and `x-attempts`."""

    async def stop(self) -> None:
        """Take no more; what is buffered goes back to the broker, what was handed out can still be settled."""


class Bus(Protocol):
    """The broker: RabbitMQ, the laptop's durable SQLite queue, or the in-memory twin."""

    async def publish(self, routing_key: str, body: Mapping[str, Any], *, event_id: str) -> None:
        """Publish an event to the topic exchange `task.events`, persistent, mandatory, confirmed in time."""

    async def command(self, body: Mapping[str, Any], *, event_id: str) -> None:
        """Ask the writer for work on the private exchange `rag.commands`."""

    def subscribe(self, queue: str, *, prefetch: int) -> AbstractAsyncContextManager[Subscription]:
        """Consume one of the queues of `contracts.topology`; survives broker restarts by itself."""

    def watch(self, *routing_keys: str) -> AbstractAsyncContextManager[AsyncIterator[Delivery]]:
        """A private, temporary view of published events (patterns as topic bindings), acknowledged by itself."""

    async def depth(self, queue: str) -> int:
        """Messages that wait in a queue (passive declare)."""

    async def ping(self) -> None:
        """Raises: BrokerUnavailable."""


# ----------------------------------------------------------------------------------------- what operators ask besides


class DeadLetters(Protocol):
    """The dead letters of a broker; every `Bus` has them. The order of what stays is never disturbed.

    `only` names letters; None means all that lie there when the call begins, `MOST_DEAD_LETTERS` of them.
    """

    async def dead_letters(
        self, *, limit: int, only: Collection[str] | None = None, with_bodies: bool = False
    ) -> list[DeadLetter]:
        """The oldest first; looked at, not taken. Raises: BrokerUnavailable."""

    async def replay_dead_letters(self, *, only: Collection[str] | None = None) -> list[str]:
        """Give them another try in the queue that they came from, their attempts counted anew.

        Durable there before it is gone here: a crash in between leaves it in both. Returns the ids of those that were
        moved; a letter from no queue of ours stays. Raises: BrokerUnavailable: some may have been moved.
        """

    async def drop_dead_letters(self, *, only: Collection[str] | None = None) -> list[str]:
        """Delete them for good. Returns the ids of those that were there. Raises: BrokerUnavailable."""


MOST_DEAD_LETTERS = 10_000
"""How many one call looks through. On RabbitMQ all of them are in hand until it ends, or they would lose their order;
of more than these, the ones behind move to the front."""


class LookBack(Protocol):
    """What a broker still has of what we published; every `Bus` has it."""

    async def published(self) -> list[bytes]:
        """Bodies of the events in `rag-service-published`, the oldest first; looked at, not taken.

        Raises: BrokerUnavailable.
        """


class Quarantine(Protocol):
    """The ledger's quarantine, for operators; `Ledger` fills it."""

    async def quarantined(self, *, limit: int, after: int = 0, with_content: bool = False) -> list[Quarantined]:
        """Open entries in the order of their ids, from the one behind `after`."""

    async def readmission(self, entry_id: int) -> Validated:
        """The version as a new one, at the present by the ledger's clock. Changes nothing.

        Raises: NotFound: no such open entry. Refused: a taint forbids it (see `domain.taint.readmit`).
        """

    async def resolve(self, entry_id: int) -> None:
        """Close an entry: its readmission is on its way. Repeating it is harmless."""


class Withdrawals(Protocol):
    """What taints took away, for operators who take back a wrong one; `Ledger` keeps it."""

    async def withdrawn(self, key: ArtifactKey, *, with_content: bool = False) -> Withdrawn:
        """Raises: NotFound: nothing of it is withdrawn, or the ledger has no source of it."""

    async def untainted(self, key: ArtifactKey, *, tainted_at: int, taints: int, reason: str, actor: str) -> Validated:
        """The kept source as a version right behind that taint; audited. Shows nothing yet: send it to the writer.

        Args:
            tainted_at: when the latest taint was sent.
            taints: how many took it away, as `withdrawn` told.

        Raises: NotFound; Refused: see `domain.taint.Untaint`.
        """


class IndexInventory(Protocol):
    """What an index holds, chunk by chunk, for whoever compares it with the ledger; every `Index` has it."""

    async def chunks_of(self, keys: Sequence[ArtifactKey]) -> list[ChunkRef]:
        """Every point of these artifacts."""

    def scan_chunks(self) -> AsyncIterator[list[ChunkRef]]:
        """Every point, page by page."""


class LedgerInventory(Protocol):
    """What the ledger shows, for the same comparison; `Ledger` has it."""

    async def live_generations(self, *, limit: int, after: ArtifactKey | None = None) -> list[LiveGeneration]:
        """In the order of their keys, from the one behind `after`."""

    async def announced(self, event_ids: Sequence[str]) -> frozenset[str]:
        """Those of these events that are in the outbox, sent or not."""

    async def first_announced(self) -> int | None:
        """When the oldest event of the outbox was put there, an ORD; None: it is empty."""

    async def writers(self) -> list[Heartbeat]:
        """What each writer last said, the newest first; the old rows of those that are gone, too."""

    async def epoch(self) -> int:
        """Which writer's turn it is; 0: there was none yet."""


class OperatorsBus(Bus, DeadLetters, LookBack, Protocol):
    """All that a broker offers."""


class OperatorsLedger(Ledger, Quarantine, Withdrawals, LedgerInventory, Protocol):
    """All that a ledger offers."""


class OperatorsIndex(Index, IndexInventory, Protocol):
    """All that an index offers."""
