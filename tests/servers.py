"""Private servers for tests: a RabbitMQ node and a PostgreSQL cluster, without systemd, beside whatever else runs.

`DATS_TEST_RABBITMQ_URL` and `DATS_TEST_POSTGRES_URL` name servers to use instead; those cannot be stopped or paused.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

RABBITMQ_BIN = Path("/usr/lib/rabbitmq/bin")
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 40.0
FREE_PORTS = range(10_000, 32_000)


class ServerMissing(Exception):
    """Neither a URL in the environment nor the server's programs; the message says what to do."""


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody uses at this moment.

    Below those that the system gives to outgoing connections, which could take it before its server does; by chance, as
    tests run side by side.
    """
    while True:
        port = secrets.choice(FREE_PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port


def wait_until(true: Callable[[], bool], *, timeout_s: float, what: str) -> None:
    """Poll until it holds. Raises: TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(0.05)


# -------------------------------------------------------------------------------------------------------- RabbitMQ


class RabbitServer:
    """A broker that tests may use; `controllable` says whether they may also stop and pause it."""

    controllable = False

    def __init__(self, url: str) -> None:
        self.url = url


class RabbitNode(RabbitServer):
    """A broker of our own in `base`: own cookie, node name, ports and name server, so that runs never meet.

    With `joins` it becomes a member of that node's cluster at its first start, and shares cookie and name server.
    With `metrics_port` it has its plugin for Prometheus there.
    """

    controllable = True

    def __init__(self, base: Path, *, joins: RabbitNode | None = None, metrics_port: int | None = None) -> None:
        self._base = base
        self._metrics_port = metrics_port
        self._port, self._dist_port = free_port(), free_port()
        self._joins = joins
        self._epmd_port: int = joins._epmd_port if joins else free_port()
        self._cookie: str = joins._cookie if joins else secrets.token_hex(16).upper()
        self._process: subprocess.Popen[bytes] | None = None
        super().__init__(f"amqp://guest:guest@127.0.0.1:{self._port}/")
        self._write_configuration()

    def start(self) -> None:
        """Returns once the broker speaks AMQP."""
        with (self._base / "stdout.log").open("ab") as output:
            self._process = subprocess.Popen(
                [RABBITMQ_BIN / "rabbitmq-server"],
                env=self._environment(),
                cwd=self._base,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # its process group holds the shell and the Erlang machine
            )
        wait_until(self._speaks_amqp, timeout_s=START_TIMEOUT_S, what="RabbitMQ start")

    def stop(self) -> None:
        """Clean shutdown."""
        if self._process is None:
            return
        os.kill(int((self._base / "pid").read_text()), signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill9()
        self._process = None

    def kill9(self) -> None:
        """What a power cut leaves."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(STOP_TIMEOUT_S)
        self._process = None

    def restart(self) -> None:
        """Clean stop and start on the same data and port."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """The broker hangs: its connections stay open and nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """End of `pause`."""
        self._signal(signal.SIGCONT)

    def close_connections(self) -> None:
        """The broker closes every client's connection."""
        self.control("close_all_connections", "test")

    @property
    def name(self) -> str:
        """Among the nodes of its cluster."""
        return f"dats{self._port}@localhost"

    def control(self, *arguments: str) -> str:
        """Run `rabbitmqctl`; it takes a second or two. Returns what it says."""
        command = [str(RABBITMQ_BIN / "rabbitmqctl"), "-q", *arguments]
        return subprocess.run(
            command, env=self._environment(), cwd=self._base, capture_output=True, text=True, timeout=60, check=True
        ).stdout

    def end(self) -> None:
        """Kill everything that was started."""
        if self._process is not None:
            self.resume()
            self.kill9()
        if self._joins is not None:
            return
        # Erlang's name server outlives its nodes, and refuses to end while it still believes in one.
        wait_until(self._epmd_ended, timeout_s=10, what="epmd end")

    def _signal(self, number: int) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, number)

    def _epmd_ended(self) -> bool:
        command = [shutil.which("epmd") or "epmd", "-port", str(self._epmd_port), "-kill"]
        done = subprocess.run(command, env=self._environment(), capture_output=True, text=True, timeout=10, check=False)
        return "living nodes" not in done.stdout + done.stderr

    def _speaks_amqp(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise RuntimeError(f"RabbitMQ ended: {(self._base / 'stdout.log').read_text()[-2000:]}")
        try:
            with socket.create_connection(("127.0.0.1", self._port), 0.5) as probe:
                probe.settimeout(2)
                probe.sendall(b"AMQP\x00\x00\x09\x01")
                return bool(probe.recv(1))
        except OSError:
            return False

    def _write_configuration(self) -> None:
        home = self._base / "home"
        home.mkdir(parents=True)
        cookie = home / ".erlang.cookie"
        cookie.write_text(self._cookie)
        cookie.chmod(0o400)
        plugins = "" if self._metrics_port is None else "rabbitmq_prometheus"
        (self._base / "enabled_plugins").write_text(f"[{plugins}].\n")
        (self._base / "rabbitmq.conf").write_text(
            f"listeners.tcp.default = 127.0.0.1:{self._port}\n"
            "disk_free_limit.absolute = 200MB\n"
            "vm_memory_high_watermark.absolute = 1GB\n" + self._formation() + self._metrics()
        )

    def _formation(self) -> str:
        if self._joins is None:
            return ""
        return (
            "cluster_formation.peer_discovery_backend = classic_config\n"
            f"cluster_formation.classic_config.nodes.1 = {self._joins.name}\n"
        )

    def _metrics(self) -> str:
        if self._metrics_port is None:
            return ""
        return f"prometheus.tcp.ip = 127.0.0.1\nprometheus.tcp.port = {self._metrics_port}\n"

    def _environment(self) -> Mapping[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RABBITMQ_")}
        base = str(self._base)
        return inherited | {
            "HOME": f"{base}/home",  # holds the cookie
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": f"{base}/rabbitmq.conf",
            "RABBITMQ_MNESIA_BASE": f"{base}/mnesia",
            "RABBITMQ_LOG_BASE": f"{base}/log",
            "RABBITMQ_PID_FILE": f"{base}/pid",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{base}/enabled_plugins",
            "RABBITMQ_GENERATED_CONFIG_DIR": f"{base}/config",
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            # Idle schedulers of the Erlang machine would otherwise spin on the test machine's few cores.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none",
            "RABBITMQ_CTL_ERL_ARGS": "+S 1:1",
            "LANG": "C.UTF-8",
            "LC_ALL": "C.UTF-8",
        }


@contextmanager
def open_rabbitmq_server() -> Iterator[RabbitServer]:
    """The broker named in the environment, or a private node for as long as the context lasts.

    Raises: ServerMissing.
    """
    if url := os.environ.get("DATS_TEST_RABBITMQ_URL"):
        yield RabbitServer(url)
        return
    if not (RABBITMQ_BIN / "rabbitmq-server").exists():
        raise ServerMissing("no RabbitMQ: run scripts/install-servers.sh as root, or set DATS_TEST_RABBITMQ_URL")
    with tempfile.TemporaryDirectory(prefix="dats-rabbitmq-", ignore_cleanup_errors=True) as base:
        node = RabbitNode(Path(base) / "node")
        try:
            node.start()
            yield node
        finally:
            node.end()


# ------------------------------------------------------------------------------------------------------ PostgreSQL


class PostgresServer:
    """A server in which tests may create databases. `url` has no driver: `postgresql://user@host:port/postgres`."""

    controllable = False

    def __init__(self, url: str) -> None:
        self.url = url


class PostgresCluster(PostgresServer):
    """A cluster of our own in `base`, durable as in production (fsync and synchronous_commit on)."""

    controllable = True

    def __init__(self, base: Path, *, programs: Path) -> None:
        self._base = base
        self._programs = programs
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        super().__init__(f"postgresql://postgres@127.0.0.1:{self._port}/postgres")
        # The server refuses to run as root.
        self._user = "postgres" if os.geteuid() == 0 else None
        base.mkdir(parents=True)
        if self._user:
            shutil.chown(base, user=self._user)
        self._create()

    def start(self) -> None:
        """Returns once the server accepts connections."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self._port),
            "unix_socket_directories": str(self._base),
            "fsync": "on",
            "synchronous_commit": "on",
            "max_connections": "200",
        }
        flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self._base / "log").open("ab") as output:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self._data, *flags],
                cwd=self._base,
                user=self._user,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        wait_until(self._is_ready, timeout_s=START_TIMEOUT_S, what="PostgreSQL start")

    def stop(self) -> None:
        """Clean shutdown; open sessions are ended."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(STOP_TIMEOUT_S)
            self._process = None

    def kill9(self) -> None:
        """What a power cut leaves."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(STOP_TIMEOUT_S)
            self._process = None

    def restart(self) -> None:
        """Clean stop and start on the same data and port."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """The server and its sessions hang: connections stay open and nothing answers."""
        for pid in self._pids():
            os.kill(pid, signal.SIGSTOP)

    def resume(self) -> None:
        """End of `pause`."""
        for pid in self._pids():
            with suppress(ProcessLookupError):  # a session that has ended since they were listed
                os.kill(pid, signal.SIGCONT)

    @property
    def _data(self) -> Path:
        return self._base / "data"

    def _create(self) -> None:
        command = [str(self._programs / "initdb"), "-D", str(self._data), "-U", "postgres", "-A", "trust", "-E", "UTF8"]
        command += ["--locale=C.UTF-8", "--no-sync"]
        subprocess.run(command, user=self._user, cwd=self._base, capture_output=True, timeout=120, check=True)

    def _is_ready(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise RuntimeError(f"PostgreSQL ended: {(self._base / 'log').read_text()[-2000:]}")
        command = [str(self._programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self._port)]
        return subprocess.run(command, timeout=10, check=False).returncode == 0

    def _pids(self) -> list[int]:
        """The server's process and its sessions, each a process group of its own."""
        if self._process is None:
            return []
        server = self._process.pid
        children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
        return [server, *map(int, children)]


def postgres_programs() -> Path | None:
    """Directory of `initdb`: Debian keeps it off the PATH, by version."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda found: int(found.parts[-3]))
    if debian:
        return debian[-1].parent
    found = shutil.which("initdb")
    return Path(found).resolve().parent if found else None


@contextmanager
def open_postgres_server() -> Iterator[PostgresServer]:
    """The server named in the environment, or a private cluster for as long as the context lasts.

    Raises: ServerMissing.
    """
    if url := os.environ.get("DATS_TEST_POSTGRES_URL"):
        yield PostgresServer(urlsplit(url)._replace(scheme="postgresql").geturl())
        return
    programs = postgres_programs()
    if programs is None:
        raise ServerMissing("no PostgreSQL: run scripts/install-servers.sh as root, or set DATS_TEST_POSTGRES_URL")
    with tempfile.TemporaryDirectory(prefix="dats-postgres-", ignore_cleanup_errors=True) as base:
        Path(base).chmod(0o755)
        cluster = PostgresCluster(Path(base) / "cluster", programs=programs)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.resume()
            cluster.stop()
