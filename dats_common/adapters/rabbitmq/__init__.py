"""The bus on RabbitMQ (3.10 or later, quorum queues), over aio-pika.

Two connections: one publishes, one consumes, so that a broker that blocks publishers still takes acknowledgements.
`connection` and `publisher` hold them, `subscription` consumes, `declarations` is what exists on the broker, `messages`
translates, `dead_letters` is for operators, and `bus` puts them together.
"""

from dats_common.adapters.rabbitmq.bus import RabbitBus, open_rabbitmq
from dats_common.adapters.rabbitmq.dead_letters import DEAD_LETTERS_BYTES
from dats_common.adapters.rabbitmq.subscription import RabbitSubscription

__all__ = ["DEAD_LETTERS_BYTES", "RabbitBus", "RabbitSubscription", "open_rabbitmq"]
