"""The shop's API: takes orders and shows how they stand. Start it with `uvicorn api:app`."""

from typing import Any

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field
from tasks import Order, accept, apologise, charge, confirm, recall, refund, reserve, restock, ship

import duly
from duly.integrations.fastapi import DulyClient, duly_lifespan

app = FastAPI(title="Orders", lifespan=duly_lifespan())
# Orders of so much are shipped once somebody has approved them, within a day.
APPROVED_FROM_CENTS = 50_000
APPROVAL_S = 86_400


class NewOrder(BaseModel):
    number: str = Field(pattern="^[A-Za-z0-9-]{1,40}$")
    mail: str
    address: str
    card: str
    cents: int = Field(gt=0)
    items: dict[str, int] = Field(min_length=1)


class Approval(BaseModel):
    approved: bool
    by: str


class Answer(BaseModel):
    id: str
    state: str
    steps: dict[str, str]


@app.post("/orders", status_code=201)
async def create(new: NewOrder, client: DulyClient) -> Answer:
    """Stored whole, or not at all. The same order again is the same workflow."""
    order = Order(**new.model_dump())
    try:
        async with client.workflow(
            "order.fulfil",
            idempotency_key=order.number,
            tags={"order": order.number},
            on_failure="compensate",
        ) as flow:
            taken = flow.add(accept.node(order), name="accept", compensate=apologise)
            paid = flow.add(charge.node(order), name="charge", after=taken, compensate=refund)
            packed = flow.add(reserve.node(order), name="reserve", after=taken, compensate=restock)
            ready: list[Any] = [paid, packed]
            if order.cents >= APPROVED_FROM_CENTS:
                ready.append(
                    flow.wait("approved", name="approval", after=ready, timeout_s=APPROVAL_S)
                )
            sent = flow.add(ship.node(order), name="ship", after=ready, compensate=recall)
            flow.add(confirm.node(order), name="confirm", after=sent)
    except duly.IdempotencyMismatch:
        raise HTTPException(409, f"there is another order {order.number}") from None
    return await show(flow.started.id, client)


@app.get("/orders/{workflow_id}")
async def show(workflow_id: str, client: DulyClient) -> Answer:
    try:
        workflow = await client.workflows.status(workflow_id)
    except duly.NotFound:
        raise HTTPException(404, "there is no such order") from None
    steps = {node.name: node.state async for node in client.workflows.nodes(workflow_id)}
    return Answer(id=workflow.id, state=workflow.state, steps=steps)


@app.post("/orders/{workflow_id}/approval")
async def approve(workflow_id: str, approval: Approval, client: DulyClient) -> Answer:
    """Said twice, it counts once. An order that is not approved fails, and is undone."""
    try:
        await client.workflows.signal(
            workflow_id, "approved", approval.model_dump(), idempotency_key="approval"
        )
    except duly.NotFound:
        raise HTTPException(404, "there is no such order") from None
    except duly.Conflict as error:
        raise HTTPException(409, error.detail) from None
    return await show(workflow_id, client)


@app.delete("/orders/{workflow_id}")
async def cancel(workflow_id: str, client: DulyClient) -> Answer:
    """What runs is asked to stop; what waits never starts, and what was done stays done."""
    try:
        await client.workflows.cancel(workflow_id)
    except duly.NotFound:
        raise HTTPException(404, "there is no such order") from None
    except duly.Conflict as error:
        raise HTTPException(409, error.detail) from None
    return await show(workflow_id, client)
