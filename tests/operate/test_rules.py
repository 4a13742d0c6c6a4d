"""The files for Prometheus and Grafana: well formed, complete, and what the Python that writes them gives."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import skip_or_fail
from servers import ServerMissing

from deploy.grafana.__main__ import rendered
from tests.operate.boards import DASHBOARDS, GRAFANA, dashboards, panels, queries
from tests.operate.prometheus import SHIPPED
from tests.operate.shortened import shortened_rules

DOCS = Path(__file__).parents[2] / "docs"
ALERTS: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((SHIPPED / "rules" / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
NAMES = list(dict.fromkeys(rule["alert"] for rule in ALERTS))


def promtool(*arguments: str) -> str:
    program = shutil.which("promtool")
    if program is None:
        skip_or_fail(ServerMissing("no promtool: run scripts/install-servers.sh as root"))
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files(folder: str) -> list[str]:
    return sorted(str(path) for path in (SHIPPED / folder).glob("*.yml"))


def test_prometheus_takes_the_scrape_configuration_and_the_rules() -> None:
    assert "valid prometheus config" in promtool("check", "config", "--syntax-only", str(SHIPPED / "prometheus.yml"))
    promtool("check", "rules", *files("rules"))


@pytest.mark.parametrize("file", files("tests"), ids=lambda file: Path(file).stem)
def test_alerts_fire_at_their_thresholds_and_not_before(file: str) -> None:
    promtool("test", "rules", file)


def test_every_alert_has_a_case_in_promtools_tests() -> None:
    cases = "".join(Path(file).read_text() for file in files("tests"))
    signs = [(rule["alert"], rule["labels"].get("sign")) for rule in ALERTS]
    without = [
        (name, sign)
        for name, sign in signs
        if f'alertname="{name}", ' + (f'sign="{sign}", ' if sign else "") + 'alertstate="firing"' not in cases
    ]
    assert without == []


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: f"{rule['alert']}-{rule['labels'].get('sign', '')}")
def test_an_alert_says_how_bad_what_and_where_to_read_on(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"critical", "warning"}
    said = rule["annotations"]
    assert said["summary"]
    assert "$value" in said["description"] or "$labels" in said["description"] or rule["labels"]["sign"]
    assert said["runbook_url"] == f"docs/runbook.md#{rule['alert'].lower()}"


def test_every_alert_has_its_heading_in_the_runbook() -> None:
    headings = re.findall(r"^#+ (DatsRag\w+)\s*$", (DOCS / "runbook.md").read_text(), re.MULTILINE)
    assert sorted(NAMES) == sorted(headings)


def test_the_pages_table_has_the_alerts_as_they_are() -> None:
    rows = re.findall(
        r"^\| \[(DatsRag\w+)\]\(runbook\.md#(\w+)\) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$",
        (DOCS / "monitoring.md").read_text(),
        re.MULTILINE,
    )
    shipped = [
        (
            rule["alert"],
            rule["alert"].lower(),
            rule["annotations"]["summary"],
            rule["labels"]["severity"],
            rule.get("for", "at once"),
        )
        for rule in ALERTS
    ]
    assert rows == shipped


# --------------------------------------------------------------------------------------------------------- dashboards


def test_the_dashboards_are_what_their_code_writes() -> None:
    assert {path.name: path.read_text() for path in DASHBOARDS.glob("*.json")} == rendered(), (
        "run python -m deploy.grafana"
    )


@pytest.mark.parametrize("name", sorted(dashboards()))
def test_a_dashboard_can_be_read_by_somebody_who_was_woken(name: str) -> None:
    board = dashboards()[name]
    assert board["uid"].startswith("dats-rag-")
    shown = panels(board)
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in shown:
        assert panel["description"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24, panel["title"]
        for link in panel["links"]:
            assert link["url"].removeprefix("${runbook}#") in {each.lower() for each in NAMES}
    places = [_cells(panel) for panel in board["panels"]]
    assert len(set().union(*places)) == sum(map(len, places)), "panels lie on each other"


def _cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
    place = panel["gridPos"]
    return {
        (x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])
    }


def test_each_alert_is_linked_from_a_panel() -> None:
    linked = {
        link["url"].partition("#")[2]
        for board in dashboards().values()
        for panel in panels(board)
        for link in panel["links"]
    }
    assert linked == {name.lower() for name in NAMES}


def test_every_query_is_promql(tmp_path: Path) -> None:
    rules = [
        {"record": f"query:{number}", "expr": each.expr} for number, each in enumerate(queries(rate_interval_s=60))
    ]
    file = tmp_path / "queries.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    promtool("check", "rules", str(file))


def test_latency_panels_lead_to_traces() -> None:
    with_exemplars = {
        (name, panel["title"])
        for name, board in dashboards().items()
        for panel in panels(board)
        for target in panel["targets"]
        if target["exemplar"]
    }
    assert {
        ("search.json", "Latency"),
        ("answers.json", "Latency"),
        ("writer.json", "Searchable after"),
    } <= with_exemplars
    sources = yaml.safe_load((GRAFANA / "provisioning/datasources/datasources.yml").read_text())["datasources"]
    by_uid = {source["uid"]: source for source in sources}
    [leads] = by_uid["prometheus"]["jsonData"]["exemplarTraceIdDestinations"]
    assert leads["datasourceUid"] in by_uid


# --------------------------------------------------------------------------------------------------------- shortening


def test_only_times_are_shortened() -> None:
    for file in files("rules"):
        text = Path(file).read_text()
        quick = yaml.safe_load(shortened_rules(text))
        for group, was in zip(quick["groups"], yaml.safe_load(text)["groups"], strict=True):
            for rule, before in zip(group["rules"], was["rules"], strict=True):
                changed = {key for key in before if rule[key] != before[key]}
                assert changed <= {"expr", "for"}
                assert re.sub(r"\[\w+\]", "[]", rule["expr"]) == re.sub(r"\[\w+\]", "[]", before["expr"])


def test_an_hour_is_a_minute_and_nothing_is_shorter_than_some_scrapes() -> None:
    text = "expr: rate(a[1h]) > rate(b[5m])\n        for: 10m\n        for: 20s\n"
    assert shortened_rules(text) == "expr: rate(a[60s]) > rate(b[15s])\n        for: 10s\n        for: 6s\n"
