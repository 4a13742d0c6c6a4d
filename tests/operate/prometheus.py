"""A private Prometheus over the rules that we ship, and what a test asks it."""

from __future__ import annotations

import math
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from fleet import eventually
from servers import ServerMissing, free_port

from tests.operate.shortened import TIMES_FASTER, shortened_config, shortened_rules

SHIPPED = Path(__file__).parents[2] / "deploy" / "prometheus"
_STOP_TIMEOUT_S = 20.0
_START_TIMEOUT_S = 30.0

Series = Mapping[str, str]


class Prometheus:
    """Its HTTP API."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._http = httpx.AsyncClient(base_url=url, timeout=30, trust_env=False)

    async def close(self) -> None:
        """End its connections."""
        await self._http.aclose()

    async def range(self, expr: str, *, start: float, end: float, step_s: float) -> list[tuple[Series, list[Any]]]:
        """Labels and samples (time, value) of each series; what is not a number is left out."""
        data = await self._get("query_range", query=expr, start=start, end=end, step=step_s)
        found = []
        for each in data["result"]:
            samples = [(at, float(value)) for at, value in each["values"] if not math.isnan(float(value))]
            if samples:
                found.append((each["metric"], samples))
        return found

    async def value(self, expr: str) -> float:
        """The only series' value now; not a number where there is none."""
        result = (await self._get("query", query=expr))["result"]
        return float(result[0]["value"][1]) if result else math.nan

    async def exemplars(self, expr: str, *, start: float, end: float) -> list[Series]:
        """Labels of the exemplars of these series."""
        data = await self._get("query_exemplars", query=expr, start=start, end=end)
        return [each["labels"] for series in data for each in series["exemplars"]]

    async def rules(self) -> list[dict[str, Any]]:
        """Every rule as it was last evaluated, alerts with their instances."""
        return [rule for group in (await self._get("rules"))["groups"] for rule in group["rules"]]

    async def targets_up(self) -> dict[str, bool]:
        """Whether each target answered its last scrape."""
        active = (await self._get("targets"))["activeTargets"]
        return {f"{each['labels']['job']} {each['labels']['instance']}": each["health"] == "up" for each in active}

    async def is_ready(self) -> bool:
        """Whether it answers."""
        try:
            return (await self._http.get("/-/ready")).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    async def _get(self, call: str, **parameters: Any) -> Any:
        response = await self._http.get(f"/api/v1/{call}", params=parameters)
        answer = response.json()
        if answer["status"] != "success":
            raise AssertionError(f"{parameters}: {answer['error']}")
        return answer["data"]


@asynccontextmanager
async def open_prometheus(
    base: Path, *, targets: Mapping[str, Sequence[str]], times_faster: float = TIMES_FASTER
) -> AsyncIterator[Prometheus]:
    """A server over `targets` by job, with the shipped rules shortened.

    Raises: ServerMissing.
    """
    program = shutil.which("prometheus")
    if program is None:
        raise ServerMissing("no Prometheus: run scripts/install-servers.sh as root")
    rules = base / "rules"
    rules.mkdir(parents=True)
    for file in (SHIPPED / "rules").glob("*.yml"):
        (rules / file.name).write_text(shortened_rules(file.read_text(), times=times_faster))
    port = free_port()
    config = base / "prometheus.yml"
    itself = {"prometheus": [f"127.0.0.1:{port}"]}
    config.write_text(
        shortened_config((SHIPPED / "prometheus.yml").read_text(), targets={**targets, **itself}, rules=rules)
    )
    command = [program, f"--config.file={config}", f"--storage.tsdb.path={base / 'tsdb'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--enable-feature=exemplar-storage", "--log.level=warn"]
    with (base / "prometheus.log").open("ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    prometheus = Prometheus(f"http://127.0.0.1:{port}")
    try:
        await eventually(prometheus.is_ready, what="Prometheus start", timeout_s=_START_TIMEOUT_S)
        yield prometheus
    finally:
        await prometheus.close()
        process.send_signal(signal.SIGTERM)
        process.wait(_STOP_TIMEOUT_S)


class Watch:
    """Which alerts fired since when, by name and sign."""

    def __init__(self, prometheus: Prometheus) -> None:
        self._prometheus = prometheus
        self.fired: dict[tuple[str, str], float] = {}
        self.said: dict[tuple[str, str], Mapping[str, str]] = {}
        """The annotations of the first instance of each."""

    async def look(self) -> None:
        """Note what fires now."""
        for rule in await self._prometheus.rules():
            if rule["type"] == "alerting" and rule["state"] == "firing":
                key = (rule["name"], rule["labels"].get("sign", ""))
                if key not in self.fired:
                    firing = [each for each in rule["alerts"] if each["state"] == "firing"]
                    self.fired[key] = time.monotonic()
                    self.said[key] = firing[0]["annotations"] if firing else {}

    async def until(self, *wanted: tuple[str, str], timeout_s: float) -> None:
        """Look until all of these have fired. Raises: TimeoutError: names those that have not."""

        async def done() -> bool:
            await self.look()
            return set(wanted) <= self.fired.keys()

        try:
            await eventually(done, what="alerts", timeout_s=timeout_s, pause_s=0.5)
        except TimeoutError:
            missing = sorted(set(wanted) - self.fired.keys())
            raise TimeoutError(f"did not fire within {timeout_s:.0f} s: {missing}") from None
