"""Servers for the tests that need one: skipped without it on a laptop, a failure where `CI=true`."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NoReturn, TypeVar
from urllib.parse import urlsplit

import pytest
from facade import small_model
from servers import PostgresServer, RabbitServer, ServerMissing, open_postgres_server, open_rabbitmq_server

S = TypeVar("S")

LONG_ONES_FIRST = ("operate", "faults", "e2e", "drills", "deploy", "services", "ports", "architecture", "unit")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take minutes go first, so that those that run side by side end together."""
    here = Path(__file__).parent
    order = {folder: place for place, folder in enumerate(LONG_ONES_FIRST)}
    items.sort(key=lambda item: order.get(item.path.relative_to(here).parts[0], len(order)))


def skip_or_fail(error: ServerMissing) -> NoReturn:
    """Skipped on a laptop, a failure where `CI=true`."""
    if os.environ.get("CI") == "true":
        pytest.fail(str(error))
    pytest.skip(str(error))


@contextmanager
def _or_skip(opening: AbstractContextManager[S]) -> Iterator[S]:
    try:
        server = opening.__enter__()
    except ServerMissing as missing:
        skip_or_fail(missing)
    try:
        yield server
    finally:
        opening.__exit__(None, None, None)


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitServer]:
    """One broker for the whole run; a private one can also be stopped and paused."""
    with _or_skip(open_rabbitmq_server()) as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One database server for the whole run."""
    with _or_skip(open_postgres_server()) as server:
        yield server


@pytest.fixture(scope="session")
def model_file() -> Path:
    """The weights of the smallest real model, and llama.cpp to run them."""
    try:
        return small_model()
    except ServerMissing as missing:
        skip_or_fail(missing)


@pytest.fixture
async def postgres_url(postgres: PostgresServer) -> AsyncIterator[str]:
    """A fresh database, as a SQLAlchemy URL: `postgresql+asyncpg://.../test_...`; dropped afterwards."""
    import asyncpg

    name = f"test_{uuid.uuid4().hex[:12]}"
    admin = await asyncpg.connect(postgres.url, timeout=10)
    try:
        await admin.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        yield urlsplit(postgres.url)._replace(scheme="postgresql+asyncpg", path=f"/{name}").geturl()
        await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        await admin.close()
