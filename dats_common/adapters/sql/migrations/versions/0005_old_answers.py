"""Old answers are dropped, so they must be found by their age."""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_rag_answers_created_at", "rag_answers", ["created_at"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_rag_answers_created_at", table_name="rag_answers")
