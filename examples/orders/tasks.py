"""The tasks of an order, for the API, which puts them into a workflow, and for the worker."""

import os

import shop
from msgspec import Struct

import duly
from duly import Context, Worker

# How soon the steps of a worker that was killed are another one's.
LEASE_S = float(os.environ.get("ORDERS_LEASE_S", "15"))
worker = Worker(pools=["orders"], concurrency=20, lease_s=LEASE_S)
RETRY = {"max_attempts": 5, "initial_s": 0.5, "max_s": 30}


class Order(Struct):
    """What a customer asked for."""

    number: str
    mail: str
    address: str
    card: str
    cents: int
    items: dict[str, int]


@worker.task("order.charge", retry=RETRY, timeout_s=20)
def charge(ctx: Context, order: Order) -> int:
    """The receipt's number. A declined card stays declined; a provider that is away is not."""
    try:
        return shop.charge(ctx.execution_key, order.card, order.cents)
    except shop.Refused as refused:
        raise duly.Reject(str(refused)) from None


@worker.task("order.reserve", retry=RETRY, timeout_s=20)
def reserve(ctx: Context, order: Order) -> int:
    """The reservation's number."""
    try:
        return shop.reserve(ctx.execution_key, order.items)
    except shop.Refused as refused:
        raise duly.Reject(str(refused)) from None


@worker.task("order.ship", retry=RETRY, timeout_s=60)
def ship(ctx: Context, order: Order) -> str:
    """The parcel's number. Its parents completed, or it would not run."""
    return shop.ship(ctx.execution_key, ctx.parents["reserve"].value, order.address)


@worker.task("order.confirm", retry=RETRY)
def confirm(ctx: Context, order: Order) -> None:
    parcel = ctx.parents["ship"].value
    shop.mail(ctx.execution_key, order.mail, f"order {order.number} is on its way as {parcel}")


@worker.task("order.apologise", retry=RETRY)
def apologise(ctx: Context, order: Order) -> None:
    """Runs as soon as one of its parents has failed."""
    shop.mail(ctx.execution_key, order.mail, f"order {order.number} cannot be delivered")


@worker.task("order.undo", retry=RETRY)
def undo(ctx: Context, order: Order) -> list[str]:
    """Runs when all of its parents have ended, however. What completed is undone, unless the order
    was shipped."""
    parents = ctx.parents
    if parents["ship"].state == "COMPLETED":
        return []
    undone = []
    if parents["charge"].state == "COMPLETED":
        shop.refund(f"{ctx.execution_key}:refund", parents["charge"].value)
        undone.append("charge")
    if parents["reserve"].state == "COMPLETED":
        shop.restock(f"{ctx.execution_key}:restock", order.items)
        undone.append("reserve")
    return undone
