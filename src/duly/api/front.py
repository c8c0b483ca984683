"""All the doors of the API, put together. The one list of what can be asked over HTTP."""

from collections.abc import Callable

from duly.api.credentials import Authenticator, JwtSettings
from duly.api.door import Door, Endpoint
from duly.api.health import HealthDoor
from duly.api.task_control import TaskControlDoor
from duly.api.task_rules import TaskRules
from duly.api.tasks import TaskDoor
from duly.api.throttle import Throttle
from duly.api.waiting import Waiting
from duly.environment import Environment
from duly.store.database import Database
from duly.store.desk import ReadDesk, SubmitDesk
from duly.store.load import Hint
from duly.store.submit import Submitter
from duly.telemetry import Metrics


class FrontDoor:
    def __init__(
        self,
        database: Database,
        environment: Environment,
        metrics: Metrics,
        submitter: Submitter,
        ring: Callable[[list[Hint]], None],
        health: HealthDoor,
        tokens: JwtSettings | None = None,
    ) -> None:
        self.database = database
        self.environment = environment
        self.metrics = metrics
        self.ring = ring
        self.health = health
        self.authenticator = Authenticator(database, environment, tokens)
        self.desk = SubmitDesk(submitter)
        self.reading = ReadDesk(database)
        self.rules = TaskRules(database, environment)
        self.throttle = Throttle(database, environment)
        self.waiting = Waiting(database)

    def endpoints(self) -> list[Endpoint]:
        tasks = TaskDoor(
            self.database,
            self.environment,
            self.desk,
            self.reading,
            self.rules,
            self.throttle,
            self.waiting,
        )
        control = TaskControlDoor(self.environment, self.waiting, self.ring)
        return [*tasks.endpoints(), *control.endpoints(), *self.health.endpoints()]

    def application(self) -> Door:
        return Door(self.endpoints(), self.database, self.authenticator, self.metrics)

    async def close(self) -> None:
        """Answer whoever was let in."""
        await self.desk.close()
        await self.reading.close()
