"""Families of metrics: what a scraper reads, how much of it, and what is absent."""

import re
import time
from pathlib import Path
from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from duly.metric_families import OTHER_SERIES, SERIES_MAX, Counts, Histograms, ReadGauge
from duly.telemetry import ALL_ROLES, BACKLOG_STATES, BAND_NAMES, Metrics

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
TENANTS = 10_000
# More than the API has.
ROUTES = 130
SCRAPE_S_MAX = 0.05
SCRAPE_BYTES_MAX = 2 * 1024 * 1024


def full_of_tenants() -> Metrics:
    """Every family that has labels, with all the values that an installation can give it."""
    metrics = Metrics()
    names = [f"tenant-{number:05}" for number in range(TENANTS)]
    for gauge, words in (
        (metrics.oldest_ready, BAND_NAMES),
        (metrics.lane_depth, BAND_NAMES),
        (metrics.backlog, BACKLOG_STATES),
        (metrics.in_flight, ("",)),
    ):
        gauge.show({(name, word): 1.0 + word for name in names for word in range(len(words))})
    for pools in (metrics.pool_ready, metrics.workers):
        pools.show({(name, pool): 3.0 for name in names for pool in ("default", "media")})
    for number in range(ROUTES):
        metrics.http_requests.add(1, "GET", f"/v1/things/{number}", "200")
        metrics.http_time.of(f"/v1/things/{number}").observe(0.1)
    return metrics


def test_ten_thousand_tenants_cost_a_scrape_little() -> None:
    """A collector that reads megabytes every 15 s is turned off; and all callers wait meanwhile."""
    metrics = full_of_tenants()
    size, best_s = 0, 1.0
    for _ in range(5):
        began = time.process_time()
        size = len(metrics.render())
        best_s = min(best_s, time.process_time() - began)
    assert size < SCRAPE_BYTES_MAX
    assert best_s < SCRAPE_S_MAX


def test_labels_that_callers_or_tenants_choose_are_bounded() -> None:
    """Each label value is a series that the collector keeps for ever."""
    for family in parse(full_of_tenants().render().decode()):
        series = {tuple(sorted(sample.labels.items())) for sample in family.samples}
        assert len(series) <= (SERIES_MAX + 1) * 20, family.name
    counts = Counts("made_up", "Up.", None, ["name"])
    for number in range(SERIES_MAX + 10):
        counts.add(1, str(number))
    assert len(counts.series) == SERIES_MAX + 1
    assert counts.series[OTHER_SERIES,] == 10


def test_names_and_units_follow_prometheus() -> None:
    """Rules and dashboards are written by people who rely on the convention."""
    for family in parse(full_of_tenants().render().decode()):
        if family.name.startswith(("process_", "python_")):
            continue
        assert family.name.startswith("duly_")
        assert family.documentation.endswith("."), family.name
        assert not family.name.endswith(("_ms", "_count", "_sum", "_bucket")), family.name
        for sample in family.samples:
            if family.type == "counter":
                assert sample.name.endswith(("_total", "_created")), sample.name
        if family.type == "histogram" and family.name != "duly_batch_size":
            assert family.name.endswith("_seconds"), family.name


def test_a_scraper_may_ask_for_openmetrics() -> None:
    """Prometheus prefers it, and refuses a body that only claims to be it."""
    text, content_type = full_of_tenants().scrape(accept=OPENMETRICS)
    assert content_type.startswith("application/openmetrics-text")
    assert text.endswith(b"# EOF\n")
    read: Any = parse_openmetrics
    names = {family.name for family in read(text.decode())}
    assert {"duly_tasks_submitted", "duly_scheduling_lag_seconds", "duly_backlog"} <= names
    plain, content_type = full_of_tenants().scrape(accept="text/html")
    assert content_type.startswith("text/plain")
    assert b"# EOF" not in plain


def test_a_process_exports_only_what_its_roles_know() -> None:
    """`duly_leases_lost_total 0` of an API process said that no lease was ever lost."""
    names = {
        roles: {family.name for family in parse(Metrics(roles).render().decode())}
        for roles in (("api",), ("scheduler",), ("executor",), ("maintenance",))
    }
    assert "duly_leases_lost" not in names["api",]
    assert "duly_leases_lost" in names["scheduler",]
    assert "duly_webhook_request_seconds" in names["executor",]
    assert "duly_webhook_request_seconds" not in names["scheduler",]
    assert "duly_tasks_submitted" not in names["executor",]
    assert "duly_maintenance_runs" not in names["api",]
    for shown in names.values():
        assert {"duly_slots_without_owner", "duly_http_requests"} <= shown
    everything = {family.name for family in parse(Metrics(ALL_ROLES).render().decode())}
    assert everything == set().union(*names.values())


def test_a_reading_is_absent_while_it_is_unknown() -> None:
    """Zero open breakers and nobody having counted them are not the same news."""
    gauge = ReadGauge("g", "A gauge.", None, ["kind"])
    assert [family.samples for family in gauge.collect()] == [[]]
    gauge.set({("host",): 0.0})
    assert [len(family.samples) for family in gauge.collect()] == [1]
    gauge.set(None)
    assert [family.samples for family in gauge.collect()] == [[]]


def test_a_histogram_without_labels_is_shown_before_its_first_value() -> None:
    """`rate()` of a series that appears with its first value misses that value."""
    histograms = Histograms("h_seconds", "A time.", None, ["band"], known=BAND_NAMES)
    (family,) = histograms.collect()
    assert {sample.labels["band"] for sample in family.samples} == set(BAND_NAMES)


def test_the_page_lists_every_metric_and_its_exporters() -> None:
    """An alert on a name that the page has and the process has not never fires."""
    page = (Path(__file__).parents[1] / "docs" / "observability.md").read_text()
    rows = re.findall(r"^\| `(duly_\w+?)(?:\{([\w,]+)\})?` \| ([^|]+) \|", page, re.MULTILINE)
    listed = {name.removesuffix("_total"): exporters for name, _, exporters in rows}
    shown = {
        role: {family.name for family in parse(Metrics((role,)).render().decode())}
        for role in ALL_ROLES
    }
    assert set(listed) == {
        name
        for names in shown.values()
        for name in names
        if name.startswith("duly_") and not name.endswith("_created")
    }
    for name, exporters in listed.items():
        if exporters in ("leader", "every process"):
            continue
        expected = {role for role in ALL_ROLES if name in shown[role]}
        if expected != set(ALL_ROLES):
            assert {each.strip() for each in exporters.split(",")} == expected, name
