"""Faults that meet each other: one that another has taken the server from ends without a word."""

from pathlib import Path

import asyncpg
import pytest

from tests.chaos.cluster import Cluster
from tests.chaos.injector import Injector
from tests.chaos.plan import Kind, Planned


class AwayCluster(Cluster):
    """Whose PostgreSQL is being restarted."""

    def __init__(self) -> None:
        """Nothing is started."""

    async def connect(self) -> asyncpg.Connection:
        raise ConnectionRefusedError


@pytest.mark.parametrize("kind", [Kind.END_BACKENDS, Kind.PIN_XMIN])
async def test_a_fault_without_its_server_ends_quietly(kind: Kind, tmp_path: Path) -> None:
    """It would end twenty minutes of chaos with a traceback instead of a verdict."""
    injector = Injector(AwayCluster(), tmp_path / "faults")
    await injector.inject(Planned(0.0, kind, "postgres", 0.0))
    await injector.measure_take_over(1)
    injector.log.close()
    assert injector.taken_over_s == []
