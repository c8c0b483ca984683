"""Real processes: `duly relay` killed at each step, duly killed under it, two at once."""

import asyncio
import signal
from typing import Any

import asyncpg
import pytest

from duly.environment import CrashPoint
from tests.processes import Child, child, doomed, eventually
from tests.servers import ServerOfTheRun
from tests.story.duly_up import RunningDuly, duly_up

pytestmark = pytest.mark.slow

ROWS = 200
BATCH = 50
POINTS = [point for point in CrashPoint if point.value.startswith("relay.")]


class Scene:
    """A duly, a producer's database with an outbox, and relays between them."""

    def __init__(self, server: ServerOfTheRun, target: str, source_url: str) -> None:
        self.server = server
        self.target_url = server.url(target)
        self.source_url = source_url
        self.duly_environ = {
            "DULY_DATABASE_URL": server.engine_url(target),
            "DULY_MIGRATION_DATABASE_URL": server.url(target),
        }

    def ask(self, url: str, statement: str) -> Any:
        async def ask() -> Any:
            connection = await asyncpg.connect(url)
            try:
                return await connection.fetchval(statement)
            finally:
                await connection.close()

        return asyncio.run(ask())

    def write(self, first: int, rows: int) -> None:
        self.ask(
            self.source_url,
            "INSERT INTO duly_outbox (type, payload, options)"
            " SELECT 'email.send', to_json(number), '{\"delay_s\": 3600}'"
            f" FROM generate_series({first}, {first + rows - 1}) AS number",
        )

    def left(self) -> int:
        left: int = self.ask(self.source_url, "SELECT count(*) FROM duly_outbox")
        return left

    def tasks(self) -> tuple[int, int]:
        """How many, and how many different."""
        counted = "SELECT array[count(*), count(DISTINCT payload)] FROM duly.tasks"
        total, different = self.ask(self.target_url, counted)
        return total, different

    def environ(self, duly: RunningDuly, key: str) -> dict[str, str]:
        return {
            "DULY_URL": duly.url,
            "DULY_API_KEY": key,
            "DULY_SOURCE_URL": self.source_url,
        }


@pytest.fixture
def scene(server: ServerOfTheRun, database_name: str, empty_url: str) -> Scene:
    scene = Scene(server, database_name, empty_url)
    with child(
        "-m", "duly", "relay", "--create-table", environ={"DULY_SOURCE_URL": empty_url}
    ) as made:
        assert made.wait() == 0, made.said_on_errors
    return scene


def relay(*flags: str) -> tuple[str, ...]:
    return ("-m", "duly", "relay", "--json", "--poll", "0.1s", "--batch-max", str(BATCH), *flags)


@pytest.mark.parametrize("point", POINTS)
def test_a_relay_killed_at_each_step_doubles_and_loses_nothing(
    scene: Scene, point: CrashPoint
) -> None:
    """kill -9 between any two commits of two databases."""
    with duly_up(environ=scene.duly_environ) as duly:
        environ = scene.environ(duly, duly.ready["api_key"])
        scene.write(0, ROWS)
        with doomed(point, *relay(), environ=environ):
            """It finds rows, and dies."""
        is_over = point is CrashPoint.RELAY_AFTER_COMMIT
        assert scene.left() == (ROWS - BATCH if is_over else ROWS)
        with child(*relay("--once"), environ=environ) as healthy:
            assert healthy.wait() == 0, healthy.said_on_errors
        assert scene.tasks() == (ROWS, ROWS)
        assert scene.left() == 0


def test_two_relays_and_a_duly_that_comes_and_goes(scene: Scene) -> None:
    """duly is killed under two running relays and started again: rows wait meanwhile, and each is
    one task in the end."""
    with duly_up(environ=scene.duly_environ) as duly:
        key = duly.ready["api_key"]
        port = duly.url.rpartition(":")[2]
        environ = scene.environ(duly, key)
        with child(*relay(), environ=environ) as one, child(*relay(), environ=environ) as two:
            for each in (one, two):
                assert each.answer() == {"ready": True}
            scene.write(0, ROWS)
            eventually(lambda: scene.left() == 0, "the first rows are forwarded")
            duly.process.kill()
            scene.write(ROWS, ROWS)
            eventually(lambda: knows_trouble(one), "a relay says that rows wait")
            assert scene.left() == ROWS
            with child(
                "-m", "duly", "up", "--json", "--port", port, environ=scene.duly_environ
            ) as again:
                again.answer()
                eventually(lambda: scene.left() == 0, "the rest is forwarded")
                assert scene.tasks() == (2 * ROWS, 2 * ROWS)
            for each in (one, two):
                each.signal(signal.SIGTERM)
                assert each.wait() == 0, each.said_on_errors


def knows_trouble(process: Child) -> bool:
    while not process.lines.empty():
        if "cannot be reached" in process.line():
            return True
    return False


def test_the_command_says_what_it_needs() -> None:
    """A relay without a source, or with one that has no outbox, must end with one clear line."""
    with child("-m", "duly", "relay") as bare:
        assert bare.wait() == 2
    assert "--source-url" in bare.said_on_errors
    with child("-m", "duly", "relay", "--sql") as printed:
        assert "CREATE TABLE" in "".join(printed.line() for _ in range(10))
