"""The container's health check: exit 0 if the URL answers 200, else 1. Without our packages, so that it starts at once."""

from __future__ import annotations

import sys
from urllib.error import URLError
from urllib.request import urlopen

TIMEOUT_S = 4.5

try:
    urlopen(sys.argv[1], timeout=TIMEOUT_S).close()  # noqa: S310  our own address, from the Dockerfile
except (URLError, OSError) as error:
    sys.exit(f"{sys.argv[1]}: {error}")
