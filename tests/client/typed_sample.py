"""What type checkers are to infer of handles. `test_typing.py` runs them over this file: lines with
`# refused` must be refused, all others must pass. It is never run."""

import dataclasses
from datetime import UTC, datetime
from typing import assert_type

from duly import AsyncTask, Client, Context, Task, TaskRegistry, Worker

tasks = TaskRegistry(pool="emails")
worker = Worker(pools=["emails"])


@dataclasses.dataclass
class Order:
    number: str


@tasks.task("email.send", priority=7)
async def send(ctx: Context, to: str, copies: int = 1) -> dict[str, int]:
    return {to: copies}


@worker.task("order.ship")
def ship(ctx: Context, order: Order) -> Order:
    return order


def submit() -> None:
    sent = send.submit("a@example.com", copies=2)
    assert_type(sent, Task[dict[str, int]])
    assert_type(sent.result(), dict[str, int])
    assert_type(ship.submit(Order("1")).result(timeout_s=3), Order)
    assert_type(send.at(datetime.now(UTC)).submit(to="a"), Task[dict[str, int]])
    assert_type(send.after(3).options(priority=9).submit(to="a"), Task[dict[str, int]])
    assert_type(send.submit_many(send.call(to=each) for each in "ab"), list[Task[dict[str, int]]])
    with Client() as client:
        assert_type(client.submit(ship.call(Order("1")), priority=3), Task[Order])
        assert_type(client.submit_many([ship.call(Order("1"))]), list[Task[Order]])
    send.submit()  # refused
    send.submit(to=3)  # refused
    send.submit(too="a")  # refused
    send.submit("a", "b")  # refused
    ship.submit(order="1")  # refused
    send.options(prio=3)  # refused


async def asubmit() -> None:
    sent = await send.asubmit(to="a")
    assert_type(sent, AsyncTask[dict[str, int]])
    assert_type(await sent.result(), dict[str, int])
    assert_type(await (await ship.asubmit(Order("1"))).result(), Order)
    await send.asubmit(to=None)  # refused
