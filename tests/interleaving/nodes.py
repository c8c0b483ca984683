"""Nodes that submit, as the sides of a race. They know the partitions: only the submit races."""

from random import Random

from duly.domain.errors import StatementRefused
from duly.domain.task import Submission
from duly.environment import Environment
from duly.store.database import Database
from duly.store.idempotency import delete_expired_keys
from duly.store.pools import PoolNumbers
from duly.store.submit import Submitter
from duly.testing.clock import ManualClock
from tests.interleaving.calls import NOTHING, SEED, SceneCall
from tests.interleaving.scenes import Scene, Stage

KEY = "order-17"
EXPIRE_KEYS = "UPDATE duly.idempotency_keys SET expires_at = duly.now() WHERE tenant = $1"


def request(scene: Scene, payload: str, key: str | None = KEY) -> Submission:
    url = "https://example.org/"
    return Submission(
        tenant=scene.tenant, type="email", payload=payload, url=url, idempotency_key=key
    )


async def submitter_on(database: Database, stage_range: Submitter, seed: int) -> Submitter:
    """A node of its own that knows the partitions already, so that only the submit races."""
    environment = Environment(clock=ManualClock(), random=Random(seed))
    submitter = Submitter(database, environment)
    submitter.range = await stage_range.current_range(stage_range.database)
    submitter.range_until = float("inf")
    return submitter


class Nodes:
    """Calls of two nodes; each draws ids of its own."""

    def __init__(self, stage: Stage) -> None:
        self.known = Submitter(stage.database, stage.environment)

    def submit(self, seed: int, payload: str = "1") -> SceneCall:
        async def call(database: Database, scene: Scene) -> str:
            node = await submitter_on(database, self.known, seed * 1_000_000 + scene.tenant)
            (answer,) = await node.submit([request(scene, payload)])
            return type(answer).__name__.lower()

        return call

    async def resend(self, database: Database, scene: Scene) -> str:
        """The very same batch, ids and all."""
        node = await submitter_on(database, self.known, SEED + scene.tenant)
        entries = await node.assign_ids([request(scene, "1", key=None)])
        try:
            await node.store(database, entries)
        except StatementRefused:
            return NOTHING
        return "stored"


async def delete_keys(database: Database, scene: Scene) -> str:
    return f"{await delete_expired_keys(database, 100)} deleted"


async def resolve_pool(database: Database, scene: Scene) -> str:
    numbers = await PoolNumbers(database).resolve([(scene.tenant, "images")])
    return f"pool {numbers[scene.tenant, 'images']}"


async def with_expired_key(stage: Stage) -> Scene:
    """The only expired key there is."""
    scene = await stage.empty()
    await Submitter(stage.database, stage.environment).submit([request(scene, "0")])
    await stage.owner.execute("DELETE FROM duly.idempotency_keys WHERE tenant <> $1", scene.tenant)
    await stage.owner.execute(EXPIRE_KEYS, scene.tenant)
    return scene
