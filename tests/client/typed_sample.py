"""What type checkers are to infer of handles. `test_typing.py` runs them over this file: lines with
`# refused` must be refused, all others must pass. It is never run."""

import dataclasses
from datetime import UTC, datetime
from typing import assert_type

import duly
from duly import AsyncTask, AsyncWorkflow, Client, Context, Task, TaskRegistry, Worker, Workflow

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


def build() -> None:
    with duly.workflow("order.fulfil", deadline_s=60, callback=send) as flow:
        shipped = flow.add(ship.node(Order("1")), name="ship")
        sent = flow.add(send.node(to="a"), after=[shipped, "ship"], when="none_failed")
        flow.task("email.send", {"to": "b"}, after=sent, delay_s=3)
        stage = flow.add(duly.chain(ship.node(Order("1")), duly.group(send.node("a"))), after=sent)
        flow.add(send.node("a").options(priority=3), after=stage)
        flow.add(send.node())  # refused
        flow.add(ship.node("1"))  # refused
        flow.add(send.node("a"), when="sometimes")  # refused
        flow.task("email.send", run_at=datetime.now(UTC))  # refused
        flow.task("email.send", after=3)  # refused
    assert_type(flow.started, Workflow)
    assert_type(flow.started.result(shipped), Order)
    assert_type(flow.started.result(sent), dict[str, int])
    assert_type(flow.started.wait(timeout_s=3), Workflow)
    with Client() as client, client.workflow("order.fulfil", deadline=60) as flow:  # refused
        flow.add(send.node(to="a"))


async def abuild() -> None:
    async with tasks.workflow("order.fulfil", on_failure="stop") as flow:
        sent = flow.add(send.node(to="a"))
    assert_type(flow.started, AsyncWorkflow)
    assert_type(await flow.started.result(sent), dict[str, int])
    assert_type([each.name async for each in flow.started.nodes()], list[str])
