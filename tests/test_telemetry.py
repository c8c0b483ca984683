"""Logs and metrics as a machine reads them."""

import json
import logging

import pytest

from duly.metric_families import OTHER_TENANTS, TENANT_LABELS_MAX, with_bounded_tenants
from duly.telemetry import Metrics, configure_logs, get_logger


def test_off_a_terminal_each_line_is_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    """A collector that meets a half-readable line drops it, or the whole file."""
    configure_logs("info", "auto")
    get_logger("duly.test").info("stopping", limit_s=3)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        get_logger("duly.test").warning("failed", exc_info=True)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    first, second = lines
    assert first["timestamp"].endswith("Z")
    del first["timestamp"]
    assert first == {"event": "stopping", "limit_s": 3, "level": "info", "logger": "duly.test"}
    assert "ValueError: two" in second["exception"]


def test_lines_of_libraries_have_the_same_form(capsys: pytest.CaptureFixture[str]) -> None:
    """A warning of the driver is as much ours as our own."""
    configure_logs("info", "json")
    logging.getLogger("asyncpg").warning("lost %s", "it")
    assert json.loads(capsys.readouterr().err)["event"] == "lost it"


def test_less_severe_lines_than_asked_for_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """Debug lines in production cost more than the work."""
    configure_logs("warning", "json")
    get_logger("duly.test").info("no")
    get_logger("duly.test").warning("yes")
    assert [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()] == ["yes"]


def test_text_is_readable_and_not_json(capsys: pytest.CaptureFixture[str]) -> None:
    """A person at a terminal asked for words."""
    configure_logs("info", "text")
    get_logger("duly.test").info("stopping", limit_s=3)
    line = capsys.readouterr().err
    assert "stopping" in line
    assert "limit_s=3" in line
    assert not line.startswith("{")


def test_two_applications_in_one_process_have_their_own_numbers() -> None:
    """With the global registry the second application could not even start."""
    first, second = Metrics(), Metrics()
    first.role_ticks.labels("api").inc()
    assert b'duly_role_ticks_total{role="api"} 1.0' in first.render()
    assert b'role="api"' not in second.render()
    assert b"duly_build_info{version=" in second.render()


def test_a_batch_of_waits_is_a_prometheus_histogram() -> None:
    """A bucket that is not cumulative, or a sum that is not one, makes every quantile wrong."""
    metrics = Metrics()
    metrics.run_time.observe_many([0.001, 0.0011, 0.3, 1e6])
    metrics.run_time.observe(0.0005)
    lines = metrics.render().decode().splitlines()
    assert 'duly_attempt_run_seconds_bucket{le="0.001"} 2.0' in lines
    assert 'duly_attempt_run_seconds_bucket{le="0.0025"} 3.0' in lines
    assert 'duly_attempt_run_seconds_bucket{le="0.5"} 4.0' in lines
    assert 'duly_attempt_run_seconds_bucket{le="21600.0"} 4.0' in lines
    assert 'duly_attempt_run_seconds_bucket{le="+Inf"} 5.0' in lines
    assert "duly_attempt_run_seconds_count 5.0" in lines
    (total,) = [line for line in lines if line.startswith("duly_attempt_run_seconds_sum ")]
    assert float(total.split()[1]) == pytest.approx(1_000_000.3026)
    assert 'duly_ready_wait_seconds_count{band="low"} 0.0' in lines


def test_the_worst_tenants_keep_their_labels_and_the_rest_share_one() -> None:
    """A label for each tenant of a large installation takes its collector down."""
    ages = {(f"t{number}", band): float(number + band) for number in range(300) for band in (0, 2)}
    bounded = with_bounded_tenants(ages, max)
    assert len({tenant for tenant, _ in bounded}) == TENANT_LABELS_MAX + 1
    assert bounded["t299", 2] == 301.0
    assert ("t99", 0) not in bounded
    assert (bounded[OTHER_TENANTS, 0], bounded[OTHER_TENANTS, 2]) == (99.0, 101.0)
    few = {("a", 0): 1.0}
    assert with_bounded_tenants(few, max) == few


def test_what_has_no_ready_work_any_more_vanishes() -> None:
    """A gauge that keeps its last value is an alarm that never ends."""
    metrics = Metrics()
    metrics.show_oldest_ready({("acme", 0): 5.0, ("zeta", 2): 1.0})
    assert b'duly_oldest_ready_seconds{band="low",tenant="zeta"} 1.0' in metrics.render()
    metrics.show_oldest_ready({("acme", 0): 6.0})
    assert b"zeta" not in metrics.render()


def test_who_may_not_know_the_tenants_sees_them_as_one() -> None:
    """Whom an installation serves, and how much, is nobody else's business."""
    metrics = Metrics()
    metrics.show_oldest_ready({("acme", 0): 5.0, ("zeta", 0): 7.0, ("zeta", 2): 1.0})
    metrics.show_backlog({("acme", 0): 5.0, ("zeta", 0): 7.0, ("zeta", 1): 1.0})
    metrics.show_in_flight({"acme": 2, "zeta": 3})
    shown = metrics.render(with_tenants=False).decode()
    assert "acme" not in shown
    assert 'duly_oldest_ready_seconds{band="high",tenant="(all)"} 7.0' in shown
    assert 'duly_backlog{state="ready",tenant="(all)"} 12.0' in shown
    assert 'duly_in_flight{tenant="(all)"} 5.0' in shown


def test_a_gauge_is_absent_while_nobody_knows_its_value() -> None:
    """A zero says that all is well."""
    metrics = Metrics()
    assert b"duly_slots_without_owner 0" not in metrics.render()
    metrics.slots_without_owner.set_function(lambda: 64)
    assert b"duly_slots_without_owner 64.0" in metrics.render()


def test_depths_and_counts_of_shared_labels_are_added_up() -> None:
    """Of a thousand small lanes the largest says nothing; their sum does."""
    metrics = Metrics()
    many = TENANT_LABELS_MAX + 50
    metrics.show_lane_depth({(f"t{number}", 1): 2.0 for number in range(many)})
    metrics.show_in_flight({f"t{number}": 3 for number in range(many)})
    text = metrics.render()
    assert b'duly_lane_depth{band="normal",tenant="(other)"} 100.0' in text
    assert b'duly_in_flight{tenant="(other)"} 150.0' in text
    assert text.count(b"duly_in_flight{") == TENANT_LABELS_MAX + 1
