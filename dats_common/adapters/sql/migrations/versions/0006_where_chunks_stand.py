"""Chunks know where in their source they stand; of those that are there already it is not known."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

COLUMNS = ("heading_path", "line_start", "line_end", "page", "anchor")


def upgrade() -> None:
    op.add_column("rag_chunks", sa.Column("heading_path", sa.Text(), server_default="", nullable=False))
    op.add_column("rag_chunks", sa.Column("line_start", sa.Integer(), nullable=True))
    op.add_column("rag_chunks", sa.Column("line_end", sa.Integer(), nullable=True))
    op.add_column("rag_chunks", sa.Column("page", sa.Integer(), nullable=True))
    op.add_column("rag_chunks", sa.Column("anchor", sa.Text(), nullable=True))


def downgrade() -> None:
    for name in COLUMNS:
        op.drop_column("rag_chunks", name)
