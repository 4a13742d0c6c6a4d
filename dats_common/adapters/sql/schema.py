"""The schema's version: brought up to date at the start of a process, by one process at a time.

A revision is named `NNNN`, or after 0.1.0 `NNNN_from_MMMM`: processes whose own newest revision is MMMM or later may
run on it. So a process of the release before starts on a schema that a newer one has brought up to date, and an older
one is refused, without having heard of that schema.
"""

from __future__ import annotations

import re
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncConnection

MIGRATIONS = Path(__file__).parent / "migrations"
# Any constant: it only has to be the same in every process that migrates the same Postgres database.
_MIGRATION_LOCK = 0x0DA7_5A6E


_REVISION = re.compile(r"(?P<number>\d{4})(?:_from_(?P<oldest>\d{4}))?")


async def version_of(connection: AsyncConnection) -> str | None:
    """The revision that the database has; None before the first."""
    return await connection.run_sync(lambda sync: MigrationContext.configure(sync).get_current_revision())


def newest_version() -> str:
    """The revision that this release needs."""
    return str(ScriptDirectory.from_config(_config()).get_current_head())


def is_known(version: str) -> bool:
    """Whether this release has the revision: it is the newest, or can be brought up to date from there."""
    return any(script.revision == version for script in ScriptDirectory.from_config(_config()).walk_revisions())


def may_run_on(found: str, *, own: str) -> bool:
    """Whether a process whose newest revision is `own` may run on a schema at `found`, which it does not know."""
    theirs, ours = _REVISION.fullmatch(found), _REVISION.fullmatch(own)
    return bool(theirs and ours and theirs["oldest"] and theirs["oldest"] <= ours["number"] < theirs["number"])


async def upgrade(connection: AsyncConnection) -> None:
    """Run what is missing, in the caller's transaction."""
    if connection.dialect.name != "sqlite":
        await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
    await connection.run_sync(_upgrade)


def _upgrade(connection: Connection) -> None:
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("path_separator", "os")
    return config
