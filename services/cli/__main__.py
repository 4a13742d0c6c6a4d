"""`dats-rag`: one entry point for operators and for those who try it out."""

from __future__ import annotations

import sys


def main() -> None:
    """Run a command. Exit status: 0 well, 1 the answer is no, 2 wrong usage, 69 something is away, 78 settings."""
    try:
        import typer  # noqa: F401
    except ImportError:
        sys.exit("dats-rag: only the client library is installed; for the commands: pip install 'dats-rag[local]'")
    from services.cli.commands import run_app

    run_app()


if __name__ == "__main__":
    main()
