"""A Markdown file, an HTML page and a Python file come back with the place that a person opens; over a whole fleet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from servers import free_port

from dats_common.clients.rag import RAGClient
from dats_common.contracts.api import SourceLocation
from dats_common.settings import load_settings
from services.local import open_fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

FILLER = "Nothing of this matters here, it only fills the pages that are around what is asked for. " * 8

GUIDE = f"""\
# Guide

{FILLER}

## Install

### On Linux

The package zebrafish comes from the archive of the distribution.

## Use

{FILLER}

{FILLER}
"""

PAGE = f"""\
<!DOCTYPE html>
<html><head><title>Manual</title><script>var zebrafish = 1</script></head>
<body><nav>zebrafish</nav><main>
<h1 id="manual">Manual</h1><p>{FILLER}</p><p>{FILLER}</p>
<section id="replication"><h2>Replication</h2>
<p>A standby server follows the walrus log of its primary.</p></section>
<h2 id="backup">Backup</h2><p>{FILLER}</p><p>{FILLER}</p>
</main></body></html>
"""

MODULE = f'''\
"""{FILLER}"""


class Ledger:
    """{FILLER}{FILLER}"""

    def settle(self, flamingo):
        """Pay the flamingo what it is owed, and write it into the book."""
        return self.book[flamingo] - self.paid[flamingo]


def other():
    """{FILLER}"""
'''

FILES = {"docs/guide.md": GUIDE, "https://example.org/manual.html": PAGE, "src/ledger.py": MODULE}


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[RAGClient]:
    settings = load_settings(None, {"DATS_DATA_DIR": str(tmp_path / "data"), "PORT": str(free_port())})
    async with open_fleet(settings) as fleet, RAGClient(base_url=fleet.base_url, timeout=120) as found:
        await asyncio.gather(
            *(
                found.embed(content, {"artifact_id": uri, "project_id": "p", "source_uri": uri})
                for uri, content in FILES.items()
            )
        )
        yield found


def line_of(text: str, part: str) -> int:
    return text.count("\n", 0, text.index(part)) + 1


async def test_what_is_found_says_where_it_stands(client: RAGClient) -> None:
    async def place(question: str) -> SourceLocation | None:
        return (await client.query(question, top_k=1)).sources[0].location

    last = line_of(GUIDE, "The package zebrafish")
    assert await place("where does the package zebrafish come from?") == SourceLocation(
        heading_path=["Guide", "Install", "On Linux"],
        line_start=line_of(GUIDE, "## Install"),
        line_end=last,
        uri=f"docs/guide.md#L{line_of(GUIDE, '## Install')}-L{last}",
    )
    assert await place("which standby follows the walrus log?") == SourceLocation(
        heading_path=["Manual", "Replication"],
        line_start=line_of(PAGE, "Replication</h2>"),
        line_end=line_of(PAGE, "A standby server"),
        anchor="replication",
        uri="https://example.org/manual.html#replication",
    )
    first, last = line_of(MODULE, "def settle"), line_of(MODULE, "return self.book")
    assert await place("pay the flamingo what it is owed") == SourceLocation(
        heading_path=["Ledger", "settle"], line_start=first, line_end=last, uri=f"src/ledger.py#L{first}-L{last}"
    )


async def test_a_citation_says_where_it_stands_also_later(client: RAGClient) -> None:
    answer = await client.answer("Which log does a standby server follow?")
    (citation,) = answer.citations
    assert citation.section == "Manual > Replication"
    assert citation.location is not None
    assert citation.location.uri == "https://example.org/manual.html#replication"
    stored = await client.get_answer(answer.id)
    assert stored.answer is not None
    assert stored.answer.citations == [citation]
