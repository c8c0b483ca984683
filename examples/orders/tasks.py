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


@worker.task("order.accept", retry=RETRY)
def accept(ctx: Context, order: Order) -> None:
    shop.accept(ctx.execution_key, order.number)


@worker.task("order.apologise", retry=RETRY)
def apologise(ctx: Context, order: Order) -> None:
    """Undoes `accept`: the first step, so this is the last that is done for an order."""
    shop.mail(ctx.execution_key, order.mail, f"order {order.number} cannot be delivered")


@worker.task("order.charge", retry=RETRY, timeout_s=20)
def charge(ctx: Context, order: Order) -> int:
    """The receipt's number. A declined card stays declined; a provider that is away is not."""
    try:
        return shop.charge(ctx.execution_key, order.card, order.cents)
    except shop.Refused as refused:
        raise duly.Reject(str(refused)) from None


@worker.task("order.refund", retry=RETRY)
def refund(ctx: Context, _order: Order) -> None:
    """Undoes `charge`: its parent is the charge, and the receipt that one's result."""
    shop.refund(ctx.execution_key, ctx.parents["charge"].value)


@worker.task("order.reserve", retry=RETRY, timeout_s=20)
def reserve(ctx: Context, order: Order) -> int:
    """The reservation's number."""
    try:
        return shop.reserve(ctx.execution_key, order.items)
    except shop.Refused as refused:
        raise duly.Reject(str(refused)) from None


@worker.task("order.restock", retry=RETRY)
def restock(ctx: Context, order: Order) -> None:
    shop.restock(ctx.execution_key, order.items)


@worker.task("order.ship", retry=RETRY, timeout_s=60)
def ship(ctx: Context, order: Order) -> str:
    """The parcel's number. Its parents completed, or it would not run."""
    approval = ctx.parents.get("approval")
    if approval is not None and not approval.value["payload"]["approved"]:
        raise duly.Reject(f"not approved by {approval.value['payload']['by']}")
    return shop.ship(ctx.execution_key, ctx.parents["reserve"].value, order.address)


@worker.task("order.recall", retry=RETRY)
def recall(ctx: Context, _order: Order) -> None:
    shop.recall(ctx.execution_key, ctx.parents["ship"].value)


@worker.task("order.confirm", retry=RETRY)
def confirm(ctx: Context, order: Order) -> None:
    parcel = ctx.parents["ship"].value
    shop.mail(ctx.execution_key, order.mail, f"order {order.number} is on its way as {parcel}")
