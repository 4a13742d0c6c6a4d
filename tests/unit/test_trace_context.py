"""What a stranger's `traceparent` may say, and what is current where."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dats_common.trace_context import TraceContext, current_trace, parse_traceparent, trace_headers, within_trace

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("text", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),  # bits that are not known yet
        (f"00-{TRACE}-{SPAN}-02", False),
        (f"cc-{TRACE}-{SPAN}-01-what-a-later-version-adds", True),
        (f"00-{TRACE}-{SPAN}-01".encode(), True),
    ],
)
def test_what_the_standard_allows_is_read(text: object, sampled: bool) -> None:
    assert parse_traceparent(text) == TraceContext(TRACE, SPAN, is_sampled=sampled, is_remote=True)


@pytest.mark.parametrize(
    "text",
    [
        None, 7, "", "00", f"00-{TRACE}-{SPAN}", f"00-{TRACE}-{SPAN}-01-more", f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE.upper()}-{SPAN}-01",
        f" 00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-01\n", f"00-{TRACE}-{SPAN}-1", f"0x-{TRACE}-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01-{'x' * 600}", f"00-{TRACE[:-1]}\u0663-{SPAN}-01", b"\xff" * 55,
    ],
)  # fmt: skip
def test_what_it_does_not_is_none(text: object) -> None:
    assert parse_traceparent(text) is None


@given(st.text() | st.binary() | st.none() | st.integers())
def test_nothing_breaks_the_reading(text: object) -> None:
    read = parse_traceparent(text)
    assert read is None or parse_traceparent(read.traceparent) == read


async def test_what_is_current_is_a_tasks_own() -> None:
    ours = TraceContext(TRACE, SPAN, is_sampled=True)
    assert (current_trace(), trace_headers()) == (None, {})

    async def elsewhere() -> TraceContext | None:
        return current_trace()

    with within_trace(ours):
        begun_within = asyncio.create_task(elsewhere())
        assert trace_headers() == {"traceparent": f"00-{TRACE}-{SPAN}-01"}
        with within_trace(None):
            assert current_trace() is None
    assert await begun_within == ours
    assert current_trace() is None
