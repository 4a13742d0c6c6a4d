"""RabbitMQ as deploy/rabbitmq sets it up, on a real broker: each user can do its work, and no more."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel
from aio_pika.exceptions import AuthenticationError, ProbableAuthenticationError
from aiormq.exceptions import ChannelAccessRefused
from servers import RABBITMQ_BIN, RabbitNode
from test_compose import make_secrets

from dats_common.adapters.rabbitmq import open_rabbitmq
from dats_common.adapters.rabbitmq.bus import RabbitBus
from dats_common.contracts import topology

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "rabbitmq" / "rabbitmq.conf"

pytestmark = pytest.mark.rabbitmq


@dataclass
class Broker:
    """The node and the secrets of its users."""

    node: RabbitNode
    secrets: Path

    def url(self, user: str) -> str:
        """As the service gets it, at this node's address."""
        told = urlsplit((self.secrets / f"amqp_url_{user}").read_text().strip())
        where = urlsplit(self.node.url)
        return told._replace(netloc=f"{told.netloc.rpartition('@')[0]}@{where.hostname}:{where.port}").geturl()

    @asynccontextmanager
    async def bus(self, user: str) -> AsyncIterator[RabbitBus]:
        async with open_rabbitmq(self.url(user), connect_timeout_s=10.0) as bus:
            yield bus

    @asynccontextmanager
    async def channel(self, user: str) -> AsyncIterator[AbstractChannel]:
        connection = await aio_pika.connect(self.url(user), timeout=10)
        async with connection:
            yield await connection.channel(on_return_raises=True)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    if not (RABBITMQ_BIN / "rabbitmq-server").exists():
        told = "no RabbitMQ: run scripts/install-servers.sh as root"
        pytest.fail(told) if os.environ.get("CI") == "true" else pytest.skip(told)
    with tempfile.TemporaryDirectory(prefix="dats-users-", ignore_cleanup_errors=True) as base:
        make_secrets(Path(base))
        secrets = Path(base) / "secrets"
        node = RabbitNode(Path(base) / "node")
        ours = CONFIGURATION.read_text()
        named = "/etc/rabbitmq/definitions.json"
        assert named in ours
        with (Path(base) / "node" / "rabbitmq.conf").open("a") as file:
            file.write(ours.replace(named, str(secrets / "rabbitmq_definitions.json")))
        try:
            node.start()
            yield Broker(node, secrets)
        finally:
            node.end()


async def test_a_writer_may_consume_publish_and_look_after_dead_letters(broker: Broker) -> None:
    async with broker.bus("writer") as bus:  # declares everything
        for queue in (topology.VALIDATED_QUEUE, topology.TAINTS_QUEUE, topology.COMMANDS_QUEUE):
            async with bus.subscribe(queue, prefetch=1):
                assert await bus.depth(queue) == 0
        await bus.publish(topology.EMBEDDING_COMPLETED, {"data": {}}, event_id="a")
        await bus.command({"data": {}}, event_id="b")
        async with bus.subscribe(topology.COMMANDS_QUEUE, prefetch=1) as commands:
            (delivery,) = await commands.batch(max_items=1, max_wait_s=10)
            await commands.retry(delivery, delay_s=1)
            (again,) = await commands.batch(max_items=1, max_wait_s=10)
            await commands.dead_letter(again, reason="of no use")
        assert len(await bus.replay_dead_letters()) == 1
        await bus.ping()


async def test_a_replica_may_command_relay_and_watch(broker: Broker) -> None:
    async with broker.bus("replica") as bus:
        async with bus.watch(topology.EMBEDDING_INVALIDATED) as seen:
            await bus.publish(topology.EMBEDDING_INVALIDATED, {"data": {}}, event_id="c")
            assert (await anext(seen)).event_type == topology.EMBEDDING_INVALIDATED
        await bus.command({"data": {}}, event_id="d")
        assert await bus.depth(topology.VALIDATED_QUEUE) == 0
        await bus.ping()


@pytest.mark.parametrize(
    ("user", "may", "may_not"),
    [
        ("qa", topology.TASK_VALIDATED, topology.ARTIFACT_TAINTED),
        ("cascade", topology.ARTIFACT_TAINTED, topology.TASK_VALIDATED),
        ("replica", topology.EMBEDDING_COMPLETED, topology.ARTIFACT_TAINTED),
        ("writer", topology.ANSWER_RECALLED, topology.TASK_VALIDATED),
    ],
)
async def test_each_publishes_its_own_events_and_nobody_elses(
    broker: Broker, user: str, may: str, may_not: str
) -> None:
    async with broker.bus("writer"):
        pass  # declares
    async with broker.channel(user) as channel:
        exchange = await channel.get_exchange(topology.EVENTS_EXCHANGE, ensure=False)
        await exchange.publish(aio_pika.Message(b"{}"), may, timeout=10)
        with pytest.raises(ChannelAccessRefused):
            await exchange.publish(aio_pika.Message(b"{}"), may_not, timeout=10)


@pytest.mark.parametrize("user", ["qa", "cascade"])
async def test_those_who_publish_read_nothing_and_command_nobody(broker: Broker, user: str) -> None:
    async with broker.bus("writer"):
        pass
    async with broker.channel(user) as channel:
        with pytest.raises(ChannelAccessRefused):
            await (await channel.get_queue(topology.PUBLISHED_QUEUE, ensure=False)).get(timeout=10)
    async with broker.channel(user) as channel:
        commands = await channel.get_exchange(topology.COMMANDS_EXCHANGE, ensure=False)
        with pytest.raises(ChannelAccessRefused):
            await commands.publish(aio_pika.Message(b"{}"), topology.EMBED_COMMAND, timeout=10)


async def test_there_is_no_guest(broker: Broker) -> None:
    with pytest.raises((AuthenticationError, ProbableAuthenticationError)):
        await aio_pika.connect(broker.node.url, timeout=10)
