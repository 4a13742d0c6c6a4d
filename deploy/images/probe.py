"""The container's health check: exit 0 if our own server answers 200, else 1.

`probe.py PORT /path`: the port is read from that variable. Without our packages, so that it starts at once.
"""

from __future__ import annotations

import os
import sys
from urllib.request import urlopen

TIMEOUT_S = 4.5

port, path = sys.argv[1:]
url = f"http://127.0.0.1:{os.environ[port]}{path}"
try:
    urlopen(url, timeout=TIMEOUT_S).close()
except OSError as error:  # also of a status that is not 2xx
    sys.exit(f"{url}: {error}")
