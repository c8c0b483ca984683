"""The shop's API: takes orders and shows how they stand. Start it with `uvicorn api:app`."""

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field
from tasks import Order, apologise, charge, confirm, reserve, ship, undo

import duly
from duly.integrations.fastapi import DulyClient, duly_lifespan

app = FastAPI(title="Orders", lifespan=duly_lifespan())


class NewOrder(BaseModel):
    number: str = Field(pattern="^[A-Za-z0-9-]{1,40}$")
    mail: str
    address: str
    card: str
    cents: int = Field(gt=0)
    items: dict[str, int] = Field(min_length=1)


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
            "order.fulfil", idempotency_key=order.number, tags={"order": order.number}
        ) as flow:
            paid = flow.add(charge.node(order), name="charge")
            packed = flow.add(reserve.node(order), name="reserve")
            sent = flow.add(ship.node(order), name="ship", after=[paid, packed])
            flow.add(confirm.node(order), name="confirm", after=sent)
            steps = [paid, packed, sent]
            flow.add(apologise.node(order), name="apologise", after=steps, when="any_failed")
            flow.add(undo.node(order), name="undo", after=steps, when="all_done")
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


@app.delete("/orders/{workflow_id}")
async def cancel(workflow_id: str, client: DulyClient) -> Answer:
    """What runs is asked to stop; what waits never starts, `undo` included."""
    try:
        await client.workflows.cancel(workflow_id)
    except duly.NotFound:
        raise HTTPException(404, "there is no such order") from None
    except duly.Conflict as error:
        raise HTTPException(409, error.detail) from None
    return await show(workflow_id, client)
