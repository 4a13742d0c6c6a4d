"""All dashboards."""

from deploy.grafana.boards.answers import ANSWERS
from deploy.grafana.boards.fleet import FLEET
from deploy.grafana.boards.search import SEARCH
from deploy.grafana.boards.servers import SERVERS
from deploy.grafana.boards.trust import TRUST
from deploy.grafana.boards.writer import WRITER

BOARDS = (FLEET, SEARCH, WRITER, ANSWERS, TRUST, SERVERS)
