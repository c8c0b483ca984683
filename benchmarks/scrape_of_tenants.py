"""`python -m benchmarks.scrape_of_tenants [--tenants N] [--json]`: what a scrape costs with many
tenants, in time and bytes. The goal is 10,000 tenants under 50 ms and 2 MB.

Every family with tenants has a value of each tenant, band, state and pool; the largest keep labels
of their own. Shown as the maintenance leader does, then scraped in both formats.
"""

import argparse
import json
import statistics
import sys
import time
from typing import Any

from duly.telemetry import BACKLOG_STATES, BAND_NAMES, Metrics

TENANTS = 10_000
LOOKS = 20
FORMATS = {
    "Prometheus text": "text/plain",
    "OpenMetrics": "application/openmetrics-text; version=1.0.0",
}
MS_MAX, BYTES_MAX = 50.0, 2_000_000


def filled(tenants: int) -> Metrics:
    metrics = Metrics()
    names = [f"tenant-{number:05}" for number in range(tenants)]
    by_band = {
        (name, band): float(number)
        for number, name in enumerate(names)
        for band in range(len(BAND_NAMES))
    }
    metrics.show_oldest_ready(by_band)
    metrics.show_lane_depth(by_band)
    metrics.show_backlog(
        {(name, state): 1.0 for name in names for state in range(len(BACKLOG_STATES))}
    )
    metrics.show_in_flight(dict.fromkeys(names, 1))
    metrics.pool_ready.show({(name, "default"): 1.0 for name in names})
    metrics.workers.show({(name, "default"): 1.0 for name in names})
    return metrics


def measure(tenants: int) -> list[dict[str, Any]]:
    metrics = filled(tenants)
    rows = []
    for name, accept in FORMATS.items():
        for with_tenants in (True, False):
            took = []
            for _ in range(LOOKS):
                began = time.perf_counter()
                text, _type = metrics.scrape(with_tenants=with_tenants, accept=accept)
                took.append((time.perf_counter() - began) * 1000)
            rows.append(
                {
                    "format": name,
                    "tenants_by_name": with_tenants,
                    "median_ms": round(statistics.median(took), 1),
                    "max_ms": round(max(took), 1),
                    "bytes": len(text),
                }
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scrape_of_tenants", description=__doc__
    )
    parser.add_argument("--tenants", type=int, default=TENANTS)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = measure(arguments.tenants)
    for row in rows:
        sys.stdout.write(json.dumps(row) + "\n")
    is_met = all(row["median_ms"] < MS_MAX and row["bytes"] < BYTES_MAX for row in rows)
    if not arguments.json:
        sys.stdout.write(f"goal of {MS_MAX:g} ms and {BYTES_MAX:,} bytes: {is_met}\n")
    sys.exit(0 if is_met else 1)


if __name__ == "__main__":
    main()
