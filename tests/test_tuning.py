"""Settings of scheduling and housekeeping reach the parts that obey them."""

from typing import Any

from duly.composition import make_parts, tuning_of
from duly.domain.execution_shares import equal_weight
from duly.domain.task import HIGH
from duly.environment import Environment
from duly.execution.assembly import make_webhook_executor
from duly.maintenance.partitions import Partitions
from duly.maintenance.role import Maintenance
from duly.settings import Settings
from duly.store.database import Database
from duly.telemetry import Metrics

NOBODY: Any = None


async def test_what_is_set_is_what_the_parts_do(database: Database) -> None:
    """A setting that is read and not obeyed is worse than none."""
    settings = Settings(aging_s=7.0, lane_depth=20, retention_days=90)
    tuning = tuning_of(settings)
    parts = make_parts(database, Environment(), Metrics(), is_alone=True, tuning=tuning)
    dispatcher = parts.scheduler.dispatcher
    assert (dispatcher.lane_depth, dispatcher.ready_state.readmit_max) == (20, 10)
    assert dispatcher.ready_state.queue_of((1, 1)).aging_s == 7.0
    (maintenance,) = [role for role in parts.roles if isinstance(role, Maintenance)]
    services = {service.name: service for service in maintenance.make()}
    partitions: Any = services["partitions"]
    assert isinstance(partitions, Partitions)
    pinned: Any = services["pinned_partitions"]
    occurrences: Any = services["old_occurrences"]
    kept = [partitions.retention_s, pinned.retention_s, occurrences.delete.keywords["retention_s"]]
    assert kept == [90 * 86_400.0] * 3


async def test_an_executor_takes_from_the_lanes_of_its_bands(database: Database) -> None:
    """One that is kept for urgent webhooks must not fill up with others."""
    executor = make_webhook_executor(
        database,
        Environment(),
        NOBODY,
        NOBODY,
        NOBODY,
        Metrics(),
        NOBODY,
        drain_s=0.0,
        heartbeat_database=database,
        weight_of=equal_weight,
        bands=["high"],
    )
    assert {lane.band for turn in range(20) for lane in executor.next_lanes()} == {HIGH}
