"""The script that sets PostgreSQL up, on a real server that asks for passwords, and the service on what it made."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest
from servers import PostgresCluster, postgres_programs
from test_compose import make_secrets

from dats_common.settings import load_settings
from services.backends import migrate_ledger, open_key_store, open_ledger

SCRIPT = Path(__file__).parents[2] / "deploy" / "postgres" / "roles.sh"
EXIT_CONFIGURATION = 78

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def cluster() -> Iterator[PostgresCluster]:
    """One of our own: roles belong to a whole server. It trusts only its administrator."""
    programs = postgres_programs()
    if programs is None or shutil.which("psql") is None:
        told = "no PostgreSQL: run scripts/install-servers.sh as root"
        pytest.fail(told) if os.environ.get("CI") == "true" else pytest.skip(told)
    with tempfile.TemporaryDirectory(prefix="dats-roles-", ignore_cleanup_errors=True) as base:
        Path(base).chmod(0o755)
        cluster = PostgresCluster(Path(base) / "cluster", programs=programs)
        rules = "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
        (Path(base) / "cluster" / "data" / "pg_hba.conf").write_text(rules)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("secrets")
    make_secrets(base)
    return base / "secrets"


def run_script(cluster: PostgresCluster, secrets: Path) -> subprocess.CompletedProcess[str]:
    where = urlsplit(cluster.url)
    environment = {
        "PATH": os.environ["PATH"],
        "PGHOST": str(where.hostname),
        "PGPORT": str(where.port),
        "PGUSER": "postgres",
        "SECRETS": str(secrets),
    }
    return subprocess.run([str(SCRIPT)], env=environment, capture_output=True, text=True, timeout=60, check=False)


def url_of(cluster: PostgresCluster, secrets: Path, login: str) -> str:
    """As the service gets it, at this server's address."""
    told = urlsplit((secrets / f"sql_url_{login}").read_text().strip())
    where = urlsplit(cluster.url)
    return told._replace(netloc=f"{told.netloc.rpartition('@')[0]}@{where.hostname}:{where.port}").geturl()


async def test_the_script_makes_what_the_service_starts_with(cluster: PostgresCluster, secrets: Path) -> None:
    for _ in range(2):  # it may be repeated
        done = run_script(cluster, secrets)
        assert (done.returncode, done.stderr) == (0, "")
    owner, writer, replica = (url_of(cluster, secrets, login) for login in ("owner", "writer", "replica"))
    as_owner = load_settings(None, {"DATS_SQL_MIGRATION_URL": owner})
    assert await migrate_ledger(as_owner) == await migrate_ledger(as_owner)

    # As on a network: the login itself may own nothing.
    for url, acting in ((writer, "writer"), (writer, "query"), (replica, "query")):
        settings = load_settings(None, {"DATS_SQL_URL": url, "DATS_SQL_ALLOW_OWNER": "false"})
        async with open_ledger(settings, acting=acting) as ledger, open_key_store(settings, acting=acting):  # type: ignore[arg-type]
            assert (await ledger.counts()).live_chunks == 0
    with pytest.raises(Exception, match="may not act as dats_rag_writer"):
        async with open_ledger(load_settings(None, {"DATS_SQL_URL": replica}), acting="writer"):
            pass


async def test_nobody_made_by_the_script_is_above_the_policies(cluster: PostgresCluster, secrets: Path) -> None:
    assert run_script(cluster, secrets).returncode == 0
    admin = await asyncpg.connect(cluster.url, timeout=10)
    try:
        roles = await admin.fetch("SELECT * FROM pg_roles WHERE rolname LIKE 'dats%'")
    finally:
        await admin.close()
    assert {row["rolname"] for row in roles if row["rolcanlogin"]} == {"dats_owner", "dats_writer", "dats_replica"}
    for row in roles:
        above = ("rolsuper", "rolcreaterole", "rolcreatedb", "rolbypassrls", "rolreplication")
        assert not any(row[name] for name in above), row["rolname"]


async def test_a_wrong_password_is_refused_and_a_new_one_taken(cluster: PostgresCluster, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    for name in ("old", "new"):
        make_secrets(tmp_path / name)
        assert run_script(cluster, tmp_path / name / "secrets").returncode == 0
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(url_of(cluster, tmp_path / "old" / "secrets", "writer"), timeout=10)
    await (await asyncpg.connect(url_of(cluster, tmp_path / "new" / "secrets", "writer"), timeout=10)).close()


def test_without_a_password_the_script_does_nothing(cluster: PostgresCluster, tmp_path: Path) -> None:
    refused = run_script(cluster, tmp_path)
    assert refused.returncode == EXIT_CONFIGURATION
    assert "postgres_owner_password is missing" in refused.stderr
