"""Every answer and what it stands on, over SQLAlchemy in the ledger's database.

An answer is withdrawn once a source of it is: not live any more as it was shown, and either its artifact shows nothing
now or a taint reaches the version that was shown. A source that a newer version replaced leaves its answers standing.
An artifact that was live shows nothing only after a taint, or because another tenant does not share it any more. The
first test also catches versions whose place was moved, by a repeated approval, from one clock to another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, Select, Table, and_, bindparam, delete, insert, not_, or_, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from dats_common.adapters.sql.engine import Database, open_database
from dats_common.adapters.sql.row_security import AS_WRITER, Access
from dats_common.adapters.sql.rows import (
    SLICE,
    enqueue,
    is_any_of,
    key_of,
    lock_order,
    not_covered_by_a_wildcard,
    slices,
)
from dats_common.adapters.sql.tables import answer_sources, answers, artifacts, documents, wildcards
from dats_common.contracts.events import build_recalled
from dats_common.domain.access import Principal
from dats_common.domain.model import NEVER, ArtifactKey, ChunkRef, Scope
from dats_common.errors import NotFound
from dats_common.ports import Evidence
from dats_common.records import AnswerRecord, KeptAnswer

_Clock = int | ColumnElement[int]
_Part = tuple[str | None, Sequence[ArtifactKey]]
"""The tenant to act for, and artifacts."""

_MOST_AT_ONCE = 100
"""Answers recalled or dropped in one transaction; on SQLite a taint waits for it."""
_CONNECTIONS = 4
"""Of its own: an answer that is on its way out does not wait behind long reads."""


@asynccontextmanager
async def open_evidence(url: str, *, timeout_s: float = 10.0, access: Access = AS_WRITER) -> AsyncIterator[Evidence]:
    """The answers in the ledger at `url`, its schema up to date. Raises: ConfigurationError, LedgerUnavailable."""
    async with open_database(url, timeout_s=timeout_s, pool_size=_CONNECTIONS, access=access) as database:
        yield SqlEvidence(database)


class SqlEvidence:
    """`ports.Evidence`. A replica on PostgreSQL keeps, finds and recalls only answers of the tenant it acts for."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def keep(self, record: AnswerRecord) -> tuple[ArtifactKey, ...]:
        keys = sorted({ref.key for ref in record.refs})
        async with self._database.writing(record.tenant_id) as connection:
            await _hold(connection, keys)
            shown = await _shown_now(connection, keys)
            fallen = {ref.key for ref in record.refs if not _is_live(ref, shown.get(ref.key))}
            now = self._database.now_inline()
            await connection.execute(
                insert(answers).values(
                    # It never left: there is nobody to tell that it is recalled.
                    **_columns(record, created_at=now, recalled_at=now if fallen else None)
                )
            )
            if record.refs:
                rows = _source_rows(record, shown, fallen)
                await connection.execute(insert(answer_sources), rows)
        if not fallen and self._database.sees_one_tenant and any(key.tenant_id != record.tenant_id for key in keys):
            fallen = await self._fallen_since(record)
        return tuple(sorted(fallen))

    async def _fallen_since(self, record: AnswerRecord) -> set[ArtifactKey]:
        """Judge an answer again that is committed: a replica cannot hold another tenant's public artifact.

        A taint that this misses commits later, and its recall finds the answer. One that it sees may have been
        followed by a recall already, of an answer that never left: nobody has it.
        """
        async with self._database.reading(record.tenant_id) as connection:
            rows = await connection.execute(_judged().where(answer_sources.c.answer_id == record.answer_id))
            return {key_of(row) for row in rows if row.is_withdrawn}

    async def find(self, answer_id: str, principal: Principal, *, actor: str) -> KeptAnswer:
        async with self._database.reading(principal.tenant_id) as connection:
            mine = select(answers).where(answers.c.answer_id == answer_id, answers.c.tenant_id == principal.tenant_id)
            # In this order: an answer and its sources come with one commit, so who sees it sees them.
            row = (await connection.execute(mine)).one_or_none()
            if row is None or not _is_for(row, principal, actor=actor):
                raise NotFound(f"there is no answer {answer_id!r}")
            judged = await connection.execute(
                _judged().where(answer_sources.c.answer_id == answer_id).order_by(answer_sources.c.position)
            )
            sources = judged.all()
            # They go together too: one that was dropped in between must not look as if it stood on nothing.
            if not sources and (await connection.execute(mine)).one_or_none() is None:
                raise NotFound(f"there is no answer {answer_id!r}")
            return _kept(row, sources)

    async def recall(
        self, keys: Sequence[ArtifactKey] | None = None, *, cascade_id: str | None = None, limit: int = 500
    ) -> int:
        recalled = 0
        async for tenant_id, part in self._suspects() if keys is None else self._parts(keys):
            # Who waited for another process finds what it has done, and looks for more.
            while recalled < limit and (
                found := await self._recallable(part, tenant_id, limit=min(_MOST_AT_ONCE, limit - recalled))
            ):
                recalled += await self._recall(found, tenant_id, cascade_id=cascade_id)
            if recalled >= limit:
                break
        return recalled

    async def forget(self, *, older_than_s: float, limit: int = 500) -> int:
        async with self._database.reading() as connection:
            before = await self._database.now(connection) - round(older_than_s * 1e6)
            old = select(answers.c.answer_id).where(answers.c.created_at < before)
            found = list((await connection.execute(old.order_by(answers.c.created_at).limit(limit))).scalars())
        for part in slices(found, _MOST_AT_ONCE):
            async with self._database.writing() as connection:
                await connection.execute(delete(answers).where(answers.c.answer_id.in_(part)))
                await connection.execute(delete(answer_sources).where(answer_sources.c.answer_id.in_(part)))
        return len(found)

    async def _parts(self, keys: Sequence[ArtifactKey]) -> AsyncIterator[_Part]:
        for tenant_id, share in self._database.shares(keys):
            for part in slices(share):
                yield tenant_id, part

    async def _suspects(self) -> AsyncIterator[_Part]:
        """The artifacts from which alone an answer can have fallen: far fewer than the sources of all answers."""
        for table, may_have_fallen in _SUSPECTS:
            position = tuple_(table.c.tenant_id, table.c.artifact_id)
            statement = (
                select(table.c.tenant_id, table.c.artifact_id)
                .distinct()
                .where(may_have_fallen)
                .order_by(table.c.tenant_id, table.c.artifact_id)
                .limit(SLICE)
            )
            page = await self._keys(statement)
            while page:
                yield None, page
                last = page[-1]
                page = await self._keys(statement.where(position > tuple_(last.tenant_id, last.artifact_id)))

    async def _keys(self, statement: Select[Any]) -> list[ArtifactKey]:
        async with self._database.reading() as connection:
            return [key_of(row) for row in await connection.execute(statement)]

    async def _recallable(self, keys: Sequence[ArtifactKey], tenant_id: str | None, *, limit: int) -> list[str]:
        """Some answers that still count as standing and do not. Looked up outside of a write transaction: mostly there
        are none, and a taint must not wait for that."""
        statement = (
            select(answer_sources.c.answer_id)
            .distinct()
            .select_from(_SOURCES.join(answers, answers.c.answer_id == answer_sources.c.answer_id))
            .where(
                answers.c.recalled_at.is_(None),
                is_any_of(self._database.engine, answer_sources, keys),
                _is_withdrawn(),
            )
            .limit(limit)
        )
        async with self._database.reading(tenant_id) as connection:
            return list((await connection.execute(statement)).scalars())

    async def _recall(self, answer_ids: Sequence[str], tenant_id: str | None, *, cascade_id: str | None) -> int:
        async with self._database.writing(tenant_id) as connection:
            # In one order, so that two processes never wait for each other; the second then finds them marked.
            held = await connection.execute(
                select(answers.c.answer_id)
                .where(answers.c.answer_id.in_(answer_ids), answers.c.recalled_at.is_(None))
                .order_by(answers.c.answer_id)
                .with_for_update()
            )
            fallen: dict[str, list[Any]] = defaultdict(list)
            of_held = answer_sources.c.answer_id.in_(list(held.scalars()))
            for row in await connection.execute(_judged().where(of_held, _is_withdrawn())):
                fallen[row.answer_id].append(row)
            if not fallen:
                return 0
            now = await self._database.now(connection)
            await connection.execute(
                update(answers).where(answers.c.answer_id.in_(list(fallen))).values(recalled_at=now)
            )
            await connection.execute(
                update(answer_sources)
                .where(
                    answer_sources.c.answer_id == bindparam("b_answer"),
                    answer_sources.c.position == bindparam("b_position"),
                )
                .values(fell=True),
                [{"b_answer": row.answer_id, "b_position": row.position} for rows in fallen.values() for row in rows],
            )
            recalls = [
                build_recalled(
                    event_id=f"recalled:{answer_id}",
                    at=now,
                    answer_id=answer_id,
                    artifact_ids=sorted({row.artifact_id for row in rows}),
                    cascade_id=cascade_id,
                )
                for answer_id, rows in sorted(fallen.items())
            ]
            await enqueue(connection, recalls, now=now)
            return len(fallen)


# ------------------------------------------------------------------------------------------------ what it stands on


async def _hold(connection: AsyncConnection, keys: Sequence[ArtifactKey]) -> None:
    """Meet the taints of these artifacts: one that is being committed comes first, and the statement after this one
    sees it; one that comes later waits for our commit, and its recall sees the answer.

    On SQLite writers take turns anyway. On PostgreSQL this skips rows that a replica may read but not change: public
    ones of other tenants.
    """
    if connection.dialect.name == "sqlite":
        return
    for named in _by_tenant(keys):
        await connection.execute(_HOLD, named)


async def _shown_now(connection: AsyncConnection, keys: Sequence[ArtifactKey]) -> dict[ArtifactKey, Any]:
    """What these artifacts show, for each one that can be seen."""
    shown: dict[ArtifactKey, Any] = {}
    for named in _by_tenant(keys):
        shown |= {key_of(row): row for row in await connection.execute(_SHOWN, named)}
    return shown


def _by_tenant(keys: Sequence[ArtifactKey]) -> Iterator[dict[str, Any]]:
    """The keys, sorted, as `_NAMED` takes them: a part for each tenant."""
    for tenant_id, share in groupby(sorted(keys), key=lambda key: key.tenant_id):
        for part in slices([key.artifact_id for key in share]):
            yield {"tenant_id": tenant_id, "artifact_ids": part}


# Built once, because every answer asks them.
_NAMED = and_(
    artifacts.c.tenant_id == bindparam("tenant_id"),
    artifacts.c.artifact_id.in_(bindparam("artifact_ids", expanding=True)),
)
_HOLD = select(artifacts.c.artifact_id).where(_NAMED).order_by(*lock_order("postgresql")).with_for_update(read=True)
_SHOWN = select(
    artifacts.c.tenant_id,
    artifacts.c.artifact_id,
    artifacts.c.live_generation,
    artifacts.c.version,
    artifacts.c.version_own_clock,
    not_covered_by_a_wildcard().label("stands"),
).where(_NAMED)


def _is_live(ref: ChunkRef, shown: Any | None) -> bool:
    return shown is not None and shown.stands and bool(shown.live_generation == ref.generation)


# An artifact shows nothing, or is reached, only after a taint; another tenant's also when it is not shared any more.
_SUSPECTS: tuple[tuple[Table, ColumnElement[bool]], ...] = (
    (
        artifacts,
        or_(artifacts.c.tainted_through > NEVER, artifacts.c.artifact_id.in_(select(wildcards.c.artifact_id))),
    ),
    (answer_sources, answer_sources.c.tenant_id != answer_sources.c.asker_tenant_id),
)


_SOURCES = answer_sources.outerjoin(
    artifacts,
    and_(artifacts.c.tenant_id == answer_sources.c.tenant_id, artifacts.c.artifact_id == answer_sources.c.artifact_id),
)


def _judged() -> Select[Any]:
    """Sources of answers, each with whether it is withdrawn now."""
    return select(answer_sources, _is_withdrawn().label("is_withdrawn")).select_from(_SOURCES)


def _is_withdrawn() -> ColumnElement[bool]:
    """Of a row of `_SOURCES`. What has fallen once stays fallen, whatever its artifact shows later."""
    is_shared = (
        select(documents.c.generation)
        .where(documents.c.generation == artifacts.c.live_generation, documents.c.scope == Scope.PUBLIC.value)
        .correlate(artifacts)
        .exists()
    )
    shows_nothing = or_(
        artifacts.c.live_generation.is_(None),  # also where the row of another tenant cannot be seen any more
        not_(not_covered_by_a_wildcard()),
        and_(answer_sources.c.tenant_id != answer_sources.c.asker_tenant_id, not_(is_shared)),
    )
    everywhere = (
        select(wildcards.c.artifact_id)
        .where(wildcards.c.artifact_id == answer_sources.c.artifact_id, _reaches(wildcards))
        .correlate(answer_sources)
        .exists()
    )
    is_replaced = artifacts.c.live_generation != answer_sources.c.generation
    return or_(answer_sources.c.fell, shows_nothing, and_(is_replaced, or_(_reaches(artifacts), everywhere)))


def _reaches(table: Table) -> ColumnElement[bool]:
    """Whether the taint bounds of `table`'s row reach the version that was shown."""
    return or_(
        and_(answer_sources.c.own_clock, answer_sources.c.version <= table.c.tainted_through_own),
        and_(not_(answer_sources.c.own_clock), answer_sources.c.version <= table.c.tainted_through),
    )


# -------------------------------------------------------------------------------------------------- rows and values


def _is_for(row: Any, principal: Principal, *, actor: str) -> bool:
    if not (_includes(principal.tags, row.asker_tags) and _includes(principal.project_ids, row.asker_project_ids)):
        return False  # it may quote what these credentials are not shown
    same_user = row.user_id is not None and row.user_id == principal.user_id
    # A service that names another of its users does not get this one's answer.
    same_actor = row.actor == actor and principal.user_id in (None, row.user_id)
    return same_user or same_actor or ("admin" in principal.roles and row.user_id is None)


def _includes(seen: frozenset[str] | None, asked: list[str] | None) -> bool:
    """Whether who sees `seen` sees all of what was seen when it was asked; None: everything."""
    return seen is None or (asked is not None and seen.issuperset(asked))


def _columns(record: AnswerRecord, *, created_at: _Clock, recalled_at: _Clock | None) -> dict[str, Any]:
    return {
        "answer_id": record.answer_id,
        "tenant_id": record.tenant_id,
        "actor": record.actor,
        "user_id": record.user_id,
        "asker_project_ids": _sorted(record.project_ids),
        "asker_tags": _sorted(record.tags),
        "question": record.question,
        "model": record.model,
        "prompt_hash": record.prompt_hash,
        "counted_tokens": record.counted_tokens,
        "counted_by": record.counted_by,
        "prompt_tokens": record.prompt_tokens,
        "response_tokens": record.response_tokens,
        "confidence": record.confidence,
        "action": record.action,
        "body": dict(record.body),
        "created_at": created_at,
        "recalled_at": recalled_at,
    }


def _sorted(names: frozenset[str] | None) -> list[str] | None:
    return None if names is None else sorted(names)


def _source_rows(record: AnswerRecord, shown: dict[ArtifactKey, Any], fallen: set[ArtifactKey]) -> list[dict[str, Any]]:
    rows = []
    for position, ref in enumerate(record.refs):
        state = shown.get(ref.key)
        rows.append(
            {
                "answer_id": record.answer_id,
                "position": position,
                "asker_tenant_id": record.tenant_id,
                "tenant_id": ref.key.tenant_id,
                "artifact_id": ref.key.artifact_id,
                "generation": ref.generation,
                "chunk_index": ref.chunk_index,
                # Of what was live as it was shown; of the others nothing is judged by it any more.
                "version": NEVER if state is None else state.version,
                "own_clock": state is not None and state.version_own_clock,
                "fell": ref.key in fallen,
            }
        )
    return rows


def _kept(row: Any, sources: Sequence[Any]) -> KeptAnswer:
    record = AnswerRecord(
        answer_id=row.answer_id,
        tenant_id=row.tenant_id,
        actor=row.actor,
        user_id=row.user_id,
        project_ids=None if row.asker_project_ids is None else frozenset(row.asker_project_ids),
        tags=None if row.asker_tags is None else frozenset(row.asker_tags),
        question=row.question,
        model=row.model,
        prompt_hash=row.prompt_hash,
        counted_tokens=row.counted_tokens,
        counted_by=row.counted_by,
        prompt_tokens=row.prompt_tokens,
        response_tokens=row.response_tokens,
        confidence=row.confidence,
        action=row.action,
        refs=tuple(ChunkRef(key_of(source), source.generation, source.chunk_index) for source in sources),
        body=row.body,
    )
    fallen = {key_of(source) for source in sources if source.is_withdrawn}
    return KeptAnswer(record, created_at=row.created_at, fallen=tuple(sorted(fallen)))
