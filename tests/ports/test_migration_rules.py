"""Expand, migrate, contract: no migration since the last release takes away what its processes still use."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import Script, ScriptDirectory
from releases import last_release
from sqlalchemy import Connection, inspect, text
from sqlalchemy.ext.asyncio import AsyncEngine

from dats_common.adapters.sql.connecting import WRITES, build_postgres_engine, open_file, parse_url
from dats_common.adapters.sql.schema import MIGRATIONS

_NAME = re.compile(r"(\d{4})_from_(\d{4})")
_VARCHAR = re.compile(r"VARCHAR\((\d+)\)")


@dataclass(frozen=True)
class Column:
    kind: str
    nullable: bool
    has_default: bool


@dataclass(frozen=True)
class Shape:
    """What a process relies on: columns, the rules that its rows must obey, and on PostgreSQL what it may do."""

    columns: dict[tuple[str, str], Column]
    rules: frozenset[tuple[str, str]]
    rights: frozenset[tuple[str, ...]]


def shape(connection: Connection) -> Shape:
    seen = inspect(connection)
    columns: dict[tuple[str, str], Column] = {}
    rules: set[tuple[str, str]] = set()
    for table in seen.get_table_names():
        for one in seen.get_columns(table):
            has_default = one["default"] is not None or bool(one.get("identity")) or one.get("autoincrement") is True
            columns[table, one["name"]] = Column(str(one["type"]), one["nullable"], has_default)
        uniques = [index["column_names"] for index in seen.get_indexes(table) if index["unique"]]
        uniques += [one["column_names"] for one in seen.get_unique_constraints(table)]
        rules |= {(table, f"unique {names}") for names in uniques}
        rules |= {(table, f"check {one['sqltext']}") for one in seen.get_check_constraints(table)}
        rules |= {(table, f"foreign key {one['constrained_columns']}") for one in seen.get_foreign_keys(table)}
    rights: set[tuple[str, ...]] = set()
    if connection.dialect.name == "postgresql":
        for query in (
            "SELECT grantee, table_name, column_name, privilege_type FROM information_schema.column_privileges",
            "SELECT grantee, table_name, '', privilege_type FROM information_schema.role_table_grants",
            "SELECT grantee, routine_name, '', privilege_type FROM information_schema.routine_privileges",
        ):
            rows = connection.execute(text(f"{query} WHERE grantee LIKE 'dats_rag_%'"))
            rights |= {tuple(row) for row in rows}
    return Shape(columns, frozenset(rules), frozenset(rights))


def taken_away(before: Shape, after: Shape) -> Iterator[str]:
    """Why a process that knows `before` may fail on `after`."""
    tables = {table for table, _ in before.columns}
    for (table, name), was in before.columns.items():
        now = after.columns.get((table, name))
        if now is None:
            yield f"{table}.{name}: dropped or renamed"
            continue
        if not _holds(now.kind, was.kind):
            yield f"{table}.{name}: {was.kind} became {now.kind}"
        if was.nullable and not now.nullable:
            yield f"{table}.{name}: NOT NULL now"
        if was.has_default and not now.has_default and not now.nullable:
            yield f"{table}.{name}: has no default any more"
    for (table, name), now in after.columns.items():
        if table in tables and (table, name) not in before.columns and not (now.nullable or now.has_default):
            yield f"{table}.{name}: new, NOT NULL and without a default"
    for table, rule in sorted(after.rules - before.rules):
        if table in tables:
            yield f"{table}: {rule} is asked of rows now"
    for right in sorted(before.rights - after.rights):
        if right[1] in {table for table, _ in after.columns} or right[1] == "rag_counts":
            yield f"{right[1]}: {right[0]} has lost {right[3]}"


def _holds(now: str, was: str) -> bool:
    wider, narrower = _VARCHAR.fullmatch(now), _VARCHAR.fullmatch(was)
    return now == was or bool(wider and narrower and int(wider[1]) >= int(narrower[1]))


def complaints(script: Script, *, oldest_before: str, taken: list[str], released: str) -> list[str]:
    """What is wrong with a revision.

    Args:
        oldest_before: from which revision on processes may run on the one before.
        released: the newest revision of the last release.
    """
    named = _NAME.fullmatch(script.revision)
    if not named:
        return [f"{script.revision}: its name must be NNNN_from_MMMM (dats_common/adapters/sql/schema.py)"]
    expanded = getattr(script.module, "contract", None)
    if expanded is None:
        wrong = (
            [] if named[2] == oldest_before else [f"{script.revision}: must be named {named[1]}_from_{oldest_before}"]
        )
        return wrong + [f"{script.revision}: {one}; this needs an expand in an earlier release" for one in taken]
    if expanded > released[:4]:
        return [f"{script.revision}: {expanded}, which it contracts, is not in release {released} yet"]
    if named[2] < expanded:
        return [f"{script.revision}: processes older than {expanded} cannot run on it"]
    return []


async def judged(url: str, migrations: Path) -> list[str]:
    """What is wrong with the revisions since the last release, applied one by one."""
    config = Config()
    config.set_main_option("script_location", str(migrations))
    config.set_main_option("path_separator", "os")
    released = last_release().schema
    scripts = ScriptDirectory.from_config(config)
    newer = [script for script in reversed(list(scripts.walk_revisions())) if script.revision[:4] > released[:4]]
    engine: AsyncEngine = (
        open_file(parse_url(url), pool_size=1, timeout_s=10)
        if url.startswith("sqlite")
        else build_postgres_engine(parse_url(url), timeout_s=10)
    )

    async def brought_to(revision: str) -> Shape:
        def run(connection: Connection) -> Shape:
            config.attributes["connection"] = connection
            command.upgrade(config, revision)
            return shape(connection)

        async with engine.connect() as connection:
            await connection.execution_options(**{WRITES: True})
            async with connection.begin():
                return await connection.run_sync(run)

    try:
        before = await brought_to(released)
        oldest, wrong = _oldest(released), []
        for script in newer:
            after = await brought_to(script.revision)
            taken = list(taken_away(before, after))
            wrong += complaints(script, oldest_before=oldest, taken=taken, released=released)
            before, oldest = after, _oldest(script.revision)
        return wrong
    finally:
        await engine.dispose()


def _oldest(revision: str) -> str:
    named = _NAME.fullmatch(revision)
    return named[2] if named else revision


async def test_no_migration_since_the_last_release_takes_away_what_its_processes_use(ledger_url: str) -> None:
    assert await judged(ledger_url, MIGRATIONS) == []


def with_one_more(directory: Path, revision: str, upgrade: str, *, contract: str | None = None) -> Path:
    """Our migrations and another one behind them."""
    folder = directory / "migrations"
    shutil.copytree(MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    newest = sorted(path.stem for path in (folder / "versions").glob("*.py"))[-1]
    down = re.search(r'^revision = "(.+)"$', (folder / "versions" / f"{newest}.py").read_text(), re.MULTILINE)
    assert down
    (folder / "versions" / "9999_later.py").write_text(
        f'import sqlalchemy as sa\nfrom alembic import op\n\nrevision = "{revision}"\ndown_revision = "{down[1]}"\n'
        + (f'contract = "{contract}"\n' if contract else "")
        + f"\n\ndef upgrade():\n    {upgrade}\n"
    )
    return folder


NEXT = f"9999_from_{last_release().schema[-4:]}"
DROP = "op.drop_column('rag_chunks', 'anchor')"


@pytest.mark.parametrize(
    ("upgrade", "said"),
    [
        ("op.add_column('rag_chunks', sa.Column('colour', sa.Text()))", None),
        ("op.add_column('rag_chunks', sa.Column('n', sa.Integer(), nullable=False, server_default='1'))", None),
        ("op.create_table('rag_later', sa.Column('id', sa.Integer(), primary_key=True))", None),
        ("op.create_index('ix_later', 'rag_chunks', ['page'])", None),
        (DROP, "rag_chunks.anchor: dropped or renamed"),
        ("op.alter_column('rag_chunks', 'anchor', new_column_name='id_to_open')", "rag_chunks.anchor: dropped"),
        ("op.create_index('ix_later', 'rag_chunks', ['page'], unique=True)", "rag_chunks: unique ['page']"),
        ("op.drop_table('rag_audit')", "rag_audit.id: dropped"),
    ],
)
async def test_a_migration_that_takes_something_away_is_found(
    upgrade: str, said: str | None, ledger_url: str, tmp_path: Path
) -> None:
    found = await judged(ledger_url, with_one_more(tmp_path, NEXT, upgrade))
    assert found == [] if said is None else any(said in one for one in found)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("type_=sa.BigInteger()", "rag_chunks.page: INTEGER became BIGINT"),
        ("nullable=False", "rag_chunks.page: NOT NULL now"),
    ],
)
async def test_a_migration_that_asks_more_of_a_column_is_found(
    change: str, said: str, ledger_url: str, tmp_path: Path
) -> None:
    upgrade = f"with op.batch_alter_table('rag_chunks') as table: table.alter_column('page', {change})"
    [found] = await judged(ledger_url, with_one_more(tmp_path, NEXT, upgrade))
    assert said in found


@pytest.mark.postgres
async def test_a_migration_that_takes_a_right_is_found(postgres_url: str, tmp_path: Path) -> None:
    later = with_one_more(tmp_path, NEXT, "op.execute('REVOKE UPDATE ON rag_outbox FROM dats_rag_query')")
    found = await judged(postgres_url, later)
    assert any("rag_outbox: dats_rag_query has lost UPDATE" in one for one in found)


@pytest.mark.parametrize(
    ("revision", "contract", "said"),
    [
        ("9999_from_0006", "0006", None),
        ("9999_from_0005", "0006", "processes older than 0006 cannot run on it"),
        ("9999_from_9998", "9998", "is not in release 0006 yet"),
        ("9999", "0006", "its name must be NNNN_from_MMMM"),
        ("9999_from_0005", None, "must be named 9999_from_0006"),
    ],
)
async def test_a_contract_waits_for_a_release_and_raises_what_may_run(
    revision: str, contract: str | None, said: str | None, tmp_path: Path
) -> None:
    later = with_one_more(tmp_path, revision, DROP if contract else "pass", contract=contract)
    found = await judged(f"sqlite:///{tmp_path / 'ledger.db'}", later)
    assert found == [] if said is None else said in found[0]
