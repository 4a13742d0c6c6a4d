"""The pages cannot lie: marked commands are run, and every name in them exists.

`<!-- run -->` above a fenced block has it run by the test. Options: `shows="text"` must be printed (repeatable),
`exit=1` is the expected status, `within=30` repeats the block until it holds, `broker` runs it beside RabbitMQ.
"""

from __future__ import annotations

import ast
import asyncio
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
import typer
from fleet import Child, bare_environment, purge
from opentelemetry.sdk import environment_variables
from servers import RabbitServer, free_port, wait_until

from dats_common.adapters.sql import tables
from dats_common.contracts import topology
from dats_common.contracts.api import HealthResponse
from dats_common.contracts.routing import QUEUE_NAMES, RETRY_RUNGS_S, retry_queue
from dats_common.settings.catalog import CONFIG_VARIABLE, catalog
from dats_common.telemetry.page import documented
from services.cli.commands import app
from services.query import answer_routes, routes

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
PAGES = sorted(
    path.relative_to(ROOT) for path in (ROOT / "README.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/**/*.md"))
)
START_TIMEOUT_S = 90.0
BLOCK_TIMEOUT_S = 60.0

_MARK = re.compile(r"<!-- run(?P<options>.*)-->")
_OPTION = re.compile(r'(?P<name>[a-z]+)(?:=(?:"(?P<quoted>[^"]*)"|(?P<plain>\S+)))?')
_SPAN = re.compile(r"`([^`\n]+)`")


# ------------------------------------------------------------------------------------------------------------ pages


@dataclass(frozen=True)
class Block:
    """A fenced block; `marked` ones are run."""

    where: str
    language: str
    text: str
    marked: bool = False
    broker: bool = False
    shows: tuple[str, ...] = ()
    status: int = 0
    within_s: float = 0.0


@dataclass(frozen=True)
class Page:
    """A page, its fenced blocks, and the rest of its text."""

    name: str
    prose: str
    blocks: tuple[Block, ...]

    @property
    def spans(self) -> list[str]:
        return _SPAN.findall(self.prose)

    @property
    def code(self) -> list[str]:
        """Inline code, and the lines of blocks."""
        return self.spans + [line for block in self.blocks for line in block.text.splitlines()]


def parse(name: str, text: str) -> Page:
    """Raises: ValueError: a fence that does not close, or a mark without a fence below it."""
    prose: list[str] = []
    blocks: list[Block] = []
    inside: list[str] | None = None
    options: str | None = None
    language = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if inside is not None:
            if line == "```":
                blocks.append(_block(f"{name}:{number}", language, "\n".join(inside), options))
                inside, options = None, None
            else:
                inside.append(line)
        elif line.startswith("```"):
            inside, language = [], line.removeprefix("```")
        elif options is not None:
            raise ValueError(f"{name}:{number}: a mark must stand right above a fenced block")
        elif mark := _MARK.fullmatch(line):
            options = mark["options"]
        else:
            prose.append(line)
    if inside is not None or options is not None:
        raise ValueError(f"{name}: a fence or a mark is left open")
    return Page(name, "\n".join(prose), tuple(blocks))


def _block(where: str, language: str, text: str, options: str | None) -> Block:
    if options is None:
        return Block(where, language, text)
    found = [(match["name"], match["quoted"] or match["plain"] or "") for match in _OPTION.finditer(options)]
    if unknown := {name for name, _ in found} - {"shows", "exit", "within", "broker"}:
        raise ValueError(f"{where}: unknown options {unknown}")
    last = dict(found)
    return Block(
        where,
        language,
        text,
        marked=True,
        broker="broker" in last,
        shows=tuple(value for name, value in found if name == "shows"),
        status=int(last.get("exit", "0")),
        within_s=float(last.get("within", "0")),
    )


def page(name: str | Path) -> Page:
    return parse(str(name), (ROOT / name).read_text(encoding="utf-8"))


# ---------------------------------------------------------------------------------------------------- running blocks


@dataclass(frozen=True)
class Place:
    """Where blocks run: what the pages call the default is somewhere else here."""

    directory: Path
    environment: dict[str, str]
    port: int = 0
    amqp_url: str = ""

    def run(self, block: Block) -> None:
        """Run until it does what the page says, or its time is up."""
        deadline = time.monotonic() + block.within_s
        while trouble := self._trouble(block):
            if time.monotonic() > deadline:
                pytest.fail(f"{block.where}: {trouble}")
            time.sleep(1.0)

    def _trouble(self, block: Block) -> str:
        command = ["bash", "-euo", "pipefail", "-c"] if block.language == "bash" else [sys.executable, "-c"]
        ran = subprocess.run(
            [*command, self._moved(block.text)],
            cwd=self.directory,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BLOCK_TIMEOUT_S,
            check=False,
        )
        missing = [text for text in block.shows if text not in ran.stdout]
        if ran.returncode == block.status and not missing:
            return ""
        return f"exit {ran.returncode} instead of {block.status}, not shown: {missing}\n{ran.stdout[-3000:]}"

    def _moved(self, text: str) -> str:
        text = text.replace("127.0.0.1:8000", f"127.0.0.1:{self.port}")
        text = re.sub(
            r"\bdats-rag (search|ask|taint|verify)\b", rf"dats-rag \1 --url http://127.0.0.1:{self.port}/api/v1", text
        )
        return text.replace("amqp://guest:guest@localhost:5672/", self.amqp_url)


def _environment(**settings: str) -> dict[str, str]:
    inherited = bare_environment(NO_PROXY="127.0.0.1,localhost", **settings)
    return {**inherited, "PATH": f"{BIN}{os.pathsep}{inherited['PATH']}"}


@contextmanager
def _running(command: list[str], environment: dict[str, str], log: Path) -> Iterator[Child]:
    child = Child(command, environment, log)
    try:
        yield child
    finally:
        if child.is_running:
            child.process.send_signal(signal.SIGTERM)
        try:
            child.wait()
        except subprocess.TimeoutExpired:
            child.kill9()


def _wait(child: Child, true: Callable[[], bool]) -> None:
    def there() -> bool:
        assert child.is_running, child.log.read_text()[-3000:]
        return true()

    wait_until(there, timeout_s=START_TIMEOUT_S, what=" ".join(child.command))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """What the tour's `make up` starts."""
    directory, port = tmp_path_factory.mktemp("fleet"), free_port()
    environment = _environment()
    command = [str(BIN / "dats-rag"), "up", "--port", str(port), "--data", "data"]
    with _running(command, environment, directory / "up.log") as up:
        _wait(up, lambda: "DATS RAG is up" in up.log.read_text())
        yield Place(directory, environment, port=port)


@pytest.fixture(scope="module")
def fleet_on_rabbitmq(tmp_path_factory: pytest.TempPathFactory, rabbitmq: RabbitServer) -> Iterator[Place]:
    """An engine and a writer, as the README's "Growing up" starts them."""
    directory, port = tmp_path_factory.mktemp("fleet-on-rabbitmq"), free_port()
    asyncio.run(purge(rabbitmq.url))  # the broker may be shared with tests that ran before
    environment = _environment(DATS_RABBITMQ_URL=rabbitmq.url, QDRANT_HOST="127.0.0.1", QDRANT_GRPC_PORT=str(port))
    dats_rag = str(BIN / "dats-rag")
    with _running([dats_rag, "engine", "--port", str(port)], environment, directory / "engine.log") as engine:
        lock = directory / "data" / "qdrant" / "engine.lock"
        _wait(engine, lambda: lock.exists() and f'"port": {port}' in lock.read_text())
        with _running([dats_rag, "writer"], environment, directory / "writer.log") as writer:
            _wait(writer, lambda: writer.said("consuming") > 0)
            yield Place(directory, environment, amqp_url=rabbitmq.url)
    asyncio.run(purge(rabbitmq.url))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "docs/tour.md",
        "docs/answers.md",
        "docs/client.md",
        "docs/runbook.md",
        "docs/security.md",
    ],
)
def test_the_commands_of_a_page_do_what_it_says(name: str, fleet: Place) -> None:
    blocks = [block for block in page(name).blocks if block.marked and not block.broker]
    assert blocks
    for block in blocks:
        fleet.run(block)


@pytest.mark.rabbitmq
@pytest.mark.timeout(300)
def test_the_plain_amqp_client_and_the_look_at_dead_letters_do_what_the_pages_say(fleet_on_rabbitmq: Place) -> None:
    for block in page("docs/events.md").blocks:
        if block.broker:
            fleet_on_rabbitmq.run(block)
    asyncio.run(_publish(fleet_on_rabbitmq.amqp_url, b'{"data": {"artifact_id": "a"}}'))
    for block in page("docs/runbook.md").blocks:
        if block.broker:
            fleet_on_rabbitmq.run(replace(block, within_s=20.0))


async def _publish(url: str, body: bytes) -> None:
    import aio_pika

    connection = await aio_pika.connect(url)
    async with connection:
        exchange = await (await connection.channel()).get_exchange(topology.EVENTS_EXCHANGE)
        await exchange.publish(aio_pika.Message(body), topology.TASK_VALIDATED, timeout=10)


def test_every_marked_block_is_run_by_a_test() -> None:
    marked = {
        (block.where.partition(":")[0], block.broker) for name in PAGES for block in page(name).blocks if block.marked
    }
    assert marked == {
        ("README.md", False),
        ("docs/tour.md", False),
        ("docs/answers.md", False),
        ("docs/client.md", False),
        ("docs/runbook.md", False),
        ("docs/runbook.md", True),
        ("docs/events.md", True),
        ("docs/security.md", False),
    }


# ------------------------------------------------------------------------------------------------------------- names


def wrong_make_targets(one: Page) -> set[str]:
    known = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    return {name for code in one.code for name in re.findall(r"\bmake ([a-z][a-z-]*)", code)} - known


def _commands() -> dict[str, set[str]]:
    """Options by command, of a group those of its commands; the root's are under the empty name."""
    root = typer.main.get_command(app)
    groups = {name: [one, *getattr(one, "commands", {}).values()] for name, one in root.commands.items()}  # type: ignore[attr-defined]
    return {
        name: {option for one in group for param in one.params for option in param.opts} | {"--help"}
        for name, group in {"": [root], **groups}.items()
    }


def wrong_commands(one: Page) -> set[str]:
    known = _commands()
    wrong = set()
    for code in one.code:
        for call in re.findall(r"\bdats-rag((?: [^|`#]*)?)", code):
            words = call.split()
            name = words[0] if words and not words[0].startswith("-") else ""
            options = {word.partition("=")[0] for word in words if word.startswith("--")}
            if name not in known:
                wrong.add(f"dats-rag {name}")
            else:
                wrong |= {f"dats-rag {name} {option}" for option in options - known[name]}
    alone = {span for span in one.spans if re.fullmatch(r"--[a-z-]+", span)}
    return wrong | (alone - set().union(*known.values()))


_FILE = re.compile(r"(?P<path>[\w./-]+\.(?:py|md|json|ya?ml|toml|txt|sh))(?::(?P<name>[A-Za-z_][\w.]*))?")
_FOLDERS = ("dats_common/", "services/", "docs/", "tests/", "config/", "scripts/", ".ci/", "deploy/")


def wrong_paths(one: Page) -> set[str]:
    """Files and folders of the source, and `file.py:name`."""
    wrong = set()
    for span in one.spans:
        match = _FILE.fullmatch(span)
        if match and (span.startswith(_FOLDERS) or "/" not in span):
            file = ROOT / match["path"]
            if not file.is_file() or (match["name"] and not _defines(file, match["name"])):
                wrong.add(span)
        elif not match and span.startswith(_FOLDERS) and not (ROOT / span).exists():
            wrong.add(span)
    return wrong


def _defines(file: Path, name: str) -> bool:
    body: list[ast.stmt] = ast.parse(file.read_text(encoding="utf-8")).body
    for part in name.split("."):
        found = [
            node
            for node in body
            if (isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == part)
            or (isinstance(node, ast.Assign) and any(getattr(target, "id", "") == part for target in node.targets))
        ]
        if not found:
            return False
        body = getattr(found[0], "body", [])
    return True


def wrong_links(one: Page) -> set[str]:
    wrong = set()
    for target in re.findall(r"\]\(([^)\s]+)\)", one.prose):
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / one.name).parent / path if path else ROOT / one.name
        if not file.exists() or (anchor and anchor not in _anchors(file)):
            wrong.add(target)
    return wrong


def _anchors(file: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


_VARIABLE = re.compile(r"\b(?:DATS|RAG|QDRANT|RABBITMQ|LIGHTRAG|OTEL|OLLAMA|EMBEDDING|MODEL|CHAT)_[A-Z0-9_]*[A-Z0-9]\b")


def wrong_variables(one: Page) -> set[str]:
    known = {name for setting in catalog() for name in (setting.env, setting.file_env)} | {CONFIG_VARIABLE}
    known |= {name for file in ROOT.glob("docker-compose*.yml") for name in re.findall(r"\$\{(\w+)", file.read_text())}
    known |= vars(environment_variables).keys()
    for_tests = {
        name
        for file in (ROOT / "tests").rglob("*.py")
        for name in re.findall(r"\bos\.environ\S*?\b(DATS_TEST_\w+)", file.read_text())
    }
    return {name for name in _VARIABLE.findall("\n".join([one.prose, *one.code])) if name not in known | for_tests}


def wrong_settings(one: Page) -> set[str]:
    names = {setting.name for setting in catalog()}
    sections = {name.rpartition(".")[0] for name in names} - {""}
    events = {value for value in vars(topology).values() if isinstance(value, str)}
    return {
        span
        for span in one.spans
        if re.fullmatch(r"[a-z_]+(\.[a-z_0-9]+)+", span)
        and span.partition(".")[0] in {name.partition(".")[0] for name in sections}
        and span not in names | sections | events
    }


def wrong_rag_names(one: Page) -> set[str]:
    """Metrics, tables and fields of health."""
    families = [family for family, _ in documented()]
    ends = {"histogram": ("", "_bucket", "_sum", "_count")}
    metrics = {f"{family.name}{end}" for family in families for end in ends.get(family.kind, ("",))}
    known = metrics | set(tables.metadata.tables) | set(HealthResponse.model_fields)
    return {name for name in re.findall(r"\brag_[a-z_]+\b", "\n".join([one.prose, *one.code])) if name not in known}


def wrong_queues(one: Page) -> set[str]:
    known = QUEUE_NAMES | {retry_queue(queue.name, rung_s) for queue in topology.QUEUES for rung_s in RETRY_RUNGS_S}
    return {span for span in one.spans if re.fullmatch(r"rag-service-[\w.-]+", span) and span not in known}


def wrong_routes(one: Page) -> set[str]:
    known = {
        f"{method} {route.path.removeprefix('/api/v1').replace(':path', '')}"  # type: ignore[attr-defined]
        for route in (*routes.router.routes, *answer_routes.router.routes)
        for method in route.methods  # type: ignore[attr-defined]
    }
    return {span for span in one.spans if re.fullmatch(r"(GET|POST|PUT|DELETE) /\S+", span) and span not in known}


CHECKS = (
    wrong_make_targets,
    wrong_commands,
    wrong_paths,
    wrong_links,
    wrong_variables,
    wrong_settings,
    wrong_rag_names,
    wrong_queues,
    wrong_routes,
)
GENERATED = (Path("docs/configuration.md"), Path("docs/http-api.md"), Path("docs/cli.md"))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_every_name_in_the_pages_exists(check: Callable[[Page], set[str]]) -> None:
    wrong = {str(name): check(page(name)) for name in PAGES if name not in GENERATED}
    assert {name: found for name, found in wrong.items() if found} == {}


@pytest.mark.parametrize(
    ("check", "lie"),
    [
        (wrong_make_targets, "`make coffee`"),
        (wrong_commands, "`dats-rag brew`"),
        (wrong_commands, "`dats-rag reindex --quickly`"),
        (wrong_commands, "`--quickly`"),
        (wrong_paths, "`services/writer/brewer.py`"),
        (wrong_paths, "`services/writer/consumer.py:Brewer`"),
        (wrong_paths, "`services/brewer/`"),
        (wrong_links, "[here](docs/brewing.md)"),
        (wrong_links, "[here](docs/architecture.md#brewing)"),
        (wrong_variables, "`DATS_BREW`"),
        (wrong_settings, "`query.brew`"),
        (wrong_rag_names, "`rag_cups_total`"),
        (wrong_queues, "`rag-service-cups`"),
        (wrong_routes, "`POST /brew`"),
    ],
)
def test_a_name_that_does_not_exist_is_found(check: Callable[[Page], set[str]], lie: str) -> None:
    assert check(parse("README.md", f"Say {lie}.\n"))


def test_a_block_that_does_not_do_what_its_page_says_is_found(tmp_path: Path) -> None:
    place = Place(tmp_path, _environment())
    place.run(Block("here", "bash", "echo tea; exit 3", status=3, shows=("tea",)))
    with pytest.raises(pytest.fail.Exception, match="not shown: \\['coffee'\\]"):
        place.run(Block("here", "bash", "echo tea", shows=("coffee",)))
    with pytest.raises(pytest.fail.Exception, match="exit 1 instead of 0"):
        place.run(Block("here", "bash", "false"))


def test_a_directory_that_no_fleet_has_used_is_refused_and_left_alone(tmp_path: Path) -> None:
    place = Place(tmp_path, _environment())
    event = '{"data": {"artifact_id": "a", "content": "0123456789", "metadata": {"project_id": "p"}}}'
    place.run(Block("here", "bash", f"dats-rag publish - <<< '{event}'", status=78, shows=("no fleet has run on",)))
    place.run(Block("here", "bash", "dats-rag reindex", status=78, shows=("no fleet has run on",)))
    assert list(tmp_path.iterdir()) == []


def test_a_request_that_breaks_the_contract_is_wrong_usage(fleet: Place) -> None:
    fleet.run(Block("here", "bash", "dats-rag search cache --mode fuzzy", status=2, shows=("search_mode",)))


def test_every_command_is_named_in_a_page() -> None:
    code = "\n".join(line for name in PAGES for line in page(name).code)
    assert [name for name in _commands() if name and f"dats-rag {name}" not in code] == []


def test_every_dependency_is_explained_and_no_other() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {
        (re.split(r"[\[<>=;,! ]", requirement)[0], extra)
        for extra, requirements in {"base": project["dependencies"], **project["optional-dependencies"]}.items()
        for requirement in requirements
    }
    rows = re.findall(r"^\| `([\w.-]+)` \| (\w+) \|", page("docs/dependencies.md").prose, re.MULTILINE)
    assert set(rows) == {(name, extra) for name, extra in wanted if name != "dats-rag"}


def test_the_api_pages_that_the_tour_names_are_served(fleet: Place) -> None:
    for path in ("/docs", "/metrics", "/openapi.json"):
        assert httpx.get(f"http://127.0.0.1:{fleet.port}{path}", timeout=10, trust_env=False).status_code == 200
