"""The laptop's bus: a durable queue in one SQLite file, shared by the processes of one machine.

`file` is the SQL, `worker` the thread that runs it, `subscription` consumes, and `bus` puts them together.
"""

from dats_common.adapters.sqlite_bus.bus import SqliteBus, open_sqlite_bus
from dats_common.adapters.sqlite_bus.file import LEASE_S
from dats_common.adapters.sqlite_bus.subscription import BEAT_S, SqliteSubscription

__all__ = ["BEAT_S", "LEASE_S", "SqliteBus", "SqliteSubscription", "open_sqlite_bus"]
