"""Alembic's entry: the caller hands over a connection, so that one code path serves SQLite and Postgres."""

from alembic import context

from dats_common.adapters.sql.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
