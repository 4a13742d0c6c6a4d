"""An event in the outbox knows whose trace it belongs to. Processes that are older leave the column empty."""

import sqlalchemy as sa
from alembic import op

revision = "0007_from_0006"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("rag_outbox", sa.Column("traceparent", sa.String(55), nullable=True))


def downgrade() -> None:
    op.drop_column("rag_outbox", "traceparent")
