from __future__ import annotations

import math

import pytest

from services.cli.scrape import Scrape, quantile

TEXT = """\
# TYPE lag histogram
lag_bucket{mode="a",le="0.1"} 5
lag_bucket{mode="a",le="0.5"} 9
lag_bucket{mode="a",le="+Inf"} 10
lag_bucket{mode="b",le="0.1"} 5
lag_bucket{mode="b",le="0.5"} 10
lag_bucket{mode="b",le="+Inf"} 10
lag_count{mode="a"} 10
lag_count{mode="b"} 10
lag_sum{mode="a"} 3
lag_sum{mode="b"} 3
# TYPE http_requests_total counter
http_requests_total{status="200"} 7
http_requests_total{status="503"} 2
"""


def test_samples_are_summed_over_their_labels() -> None:
    found = Scrape.parse(TEXT)
    assert found.total("lag_count") == 20
    assert found.total("http_requests_total", status_from=500) == 2
    assert found.total("no_such_thing") == 0
    assert found.buckets("lag") == {0.1: 10, 0.5: 19, math.inf: 20}


@pytest.mark.parametrize(
    ("share", "value"),
    [(0.25, 0.05), (0.5, 0.1), (0.95, 0.5), (1.0, 0.5)],
)
def test_a_quantile_is_linear_within_its_bucket_and_never_beyond_the_last_bound(share: float, value: float) -> None:
    assert quantile(Scrape.parse(TEXT).buckets("lag"), share) == pytest.approx(value)


def test_nothing_observed_has_no_quantile() -> None:
    assert quantile({}, 0.5) is None
    assert quantile({0.1: 0, math.inf: 0}, 0.5) is None
    assert quantile({math.inf: 3}, 0.5) is None
