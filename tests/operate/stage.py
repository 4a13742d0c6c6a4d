"""Everything that the dashboards show, as real processes that a test may break: broker with its plugin, PostgreSQL, the
engine, writers, replicas, watches, a model server."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fleet import Child, Fleet, Replica, bare_environment, create_database
from scripted_ollama import ScriptedOllama, open_scripted_ollama
from servers import RABBITMQ_BIN, PostgresCluster, RabbitNode, ServerMissing, free_port, open_postgres_server

TESTS = Path(__file__).parents[1]
REPLICAS, WRITERS = 2, 2
SMALL_DISK_MB = 32

SETTINGS = """\
events:
  drain_s: 5
  sweep_interval_s: 3600  # it would repair what is to be seen broken
  rabbitmq:
    heartbeat_s: 4
    publish_timeout_s: 2
embedding:
  threads: 1
query:
  reranking:
    enabled: true
    model: {reranker}
    threads: 1
    deadline_ms: 2000
    certain_lead: 1
    domains: {{docs: true}}
"""

_SAVE_RERANKER = """
import sys
from pathlib import Path
from tiny_cross_encoder import save_cross_encoder
folder = Path(sys.argv[1])
folder.mkdir()
save_cross_encoder(folder, labels=("relevance",), liked="night", openvino=True)
"""


class WatchedFleet(Fleet):
    """A fleet whose writers serve metrics too."""

    def __init__(self, base: Path, *, sql_url: str, amqp_url: str) -> None:
        super().__init__(base, sql_url=sql_url, amqp_url=amqp_url)
        self.writer_ports = [free_port() for _ in range(WRITERS)]

    def add_writer(self) -> Child:
        port = str(self.writer_ports[len(self.writers)])
        environment = {**self.environment, "DATS_WRITER_METRICS_PORT": port}
        log = self.base / f"writer-{len(self.writers)}.log"
        self.writers.append(Child([sys.executable, "-m", "services.writer"], environment, log))
        return self.writers[-1]


@dataclass
class Stage:
    """The processes and how to reach them.

    Attributes:
        unguarded: a replica whose guard lets everything through.
        watches: `dats-rag verify --watch`: the first asks the good replicas, the second the unguarded one.
        model_server: what keeps `ollama` open: close it, and the model server is away.
        small_disk: where the first replica has its data directory; None where no file system may be mounted.
    """

    fleet: WatchedFleet
    broker: RabbitNode
    broker_metrics: int
    postgres: PostgresCluster
    ollama: ScriptedOllama
    model_server: AsyncExitStack
    small_disk: Path | None
    unguarded_port: int = field(default_factory=free_port)
    watch_ports: tuple[int, int] = field(default_factory=lambda: (free_port(), free_port()))
    beside: list[Child] = field(default_factory=list)

    @property
    def targets(self) -> dict[str, list[str]]:
        """What Prometheus scrapes, by job; also what is not started yet."""
        broker = f"127.0.0.1:{self.broker_metrics}"
        return {
            "rag-query": [replica.url.removeprefix("http://") for replica in self.fleet.replicas],
            "rag-writer": [f"127.0.0.1:{port}" for port in self.fleet.writer_ports],
            "rag-verify": [f"127.0.0.1:{port}" for port in self.watch_ports],
            "rabbitmq": [broker],
            "rabbitmq-queues": [broker],
        }

    def watch(self, urls: Sequence[str], *, port: int, every_s: int = 1) -> Child:
        """Start a watch of these replicas."""
        named = [part for url in urls for part in ("--url", f"{url}/api/v1")]
        command = [sys.executable, "-m", "services.cli", "verify", *named]
        command += ["--rounds", "1", "--watch", str(every_s), "--rate", "20", "--metrics-port", str(port)]
        self.beside.append(Child(command, self.fleet.environment, self.fleet.base / f"watch-{port}.log"))
        return self.beside[-1]

    def unguarded(self) -> Replica:
        """Start the replica without a guard."""
        command = [sys.executable, str(TESTS / "unguarded.py"), str(self.unguarded_port)]
        url = f"http://127.0.0.1:{self.unguarded_port}"
        replica = Replica(command, self.fleet.environment, self.fleet.base / "unguarded.log", url=url)
        self.beside.append(replica)
        return replica

    def end(self) -> None:
        """Kill what was started here."""
        for child in self.beside:
            child.end()
        self.fleet.end()


@contextmanager
def small_disk() -> Iterator[Path | None]:
    """A file system of `SMALL_DISK_MB`, where this process may mount one."""
    place = Path(tempfile.mkdtemp(prefix="dats-small-disk-"))
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_MB}m", "tmpfs", str(place)]
    is_mounted = subprocess.run(mounting, capture_output=True, check=False).returncode == 0
    try:
        yield place if is_mounted else None
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(place)], check=True)
        place.rmdir()


@asynccontextmanager
async def open_stage(base: Path, *, collector: str = "") -> AsyncIterator[Stage]:
    """Everything up: the replicas are ready and the writers consume.

    Args:
        collector: URL of an OTLP receiver for traces; empty: there are none.

    Raises: ServerMissing.
    """
    if not (RABBITMQ_BIN / "rabbitmq-server").exists():
        raise ServerMissing("no RabbitMQ: run scripts/install-servers.sh as root")
    with (
        tempfile.TemporaryDirectory(prefix="dats-rabbitmq-", ignore_cleanup_errors=True) as broker_base,
        open_postgres_server() as postgres,
        small_disk() as disk,
    ):
        if not isinstance(postgres, PostgresCluster):
            raise ServerMissing("this test stops its database: unset DATS_TEST_POSTGRES_URL")
        metrics_port = free_port()
        broker = RabbitNode(Path(broker_base) / "node", metrics_port=metrics_port)
        try:
            async with AsyncExitStack() as model_server:
                ollama = await model_server.enter_async_context(open_scripted_ollama())
                reranker, _ = await asyncio.gather(_reranker(base), asyncio.to_thread(broker.start))
                sql_url = await create_database(postgres.url)
                fleet = _fleet(base, sql_url=sql_url, amqp_url=broker.url, ollama=ollama.url, reranker=reranker)
                fleet.environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector
                stage = Stage(fleet, broker, metrics_port, postgres, ollama, model_server, disk)
                try:
                    await asyncio.to_thread(_start, stage)
                    yield stage
                finally:
                    await asyncio.to_thread(stage.end)
        finally:
            await asyncio.to_thread(broker.end)


def _fleet(base: Path, *, sql_url: str, amqp_url: str, ollama: str, reranker: Path) -> WatchedFleet:
    fleet = WatchedFleet(base, sql_url=sql_url, amqp_url=amqp_url)
    (base / "rag-service.yaml").write_text(SETTINGS.format(reranker=reranker))
    fleet.environment["OLLAMA_BASE_URL"] = ollama
    return fleet


def _start(stage: Stage) -> None:
    fleet = stage.fleet
    fleet.start_engine()
    for _ in range(WRITERS):
        fleet.add_writer()
    usual = fleet.environment
    for number in range(REPLICAS):
        on_small_disk = {} if number or stage.small_disk is None else {"DATS_DATA_DIR": str(stage.small_disk)}
        fleet.environment = {**usual, **on_small_disk}
        fleet.add_replica()
    fleet.environment = usual
    fleet.wait_until_up()


async def _reranker(base: Path) -> Path:
    """A tiny one, saved by a process of its own: PyTorch is heavy."""
    folder = base / "reranker"
    environment: Mapping[str, str] = bare_environment(PYTHONPATH=str(TESTS))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _SAVE_RERANKER, str(folder), env=dict(environment)
    )
    assert await process.wait() == 0
    return folder
