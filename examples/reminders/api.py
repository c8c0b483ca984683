"""The reminder service's API, and the receiver of its webhooks. Start it with `uvicorn api:app`."""

import os
from datetime import datetime

from fastapi import FastAPI, HTTPException, Request
from pydantic import AwareDatetime, BaseModel
from tasks import send

import duly
from duly.integrations.fastapi import DulyClient, duly_lifespan

app = FastAPI(title="Reminders", lifespan=duly_lifespan())
app.add_middleware(duly.WebhookReceiver, secrets=os.environ["REMINDERS_SECRET"], path="/hooks/")
sent: dict[str, int] = {}


class Reminder(BaseModel):
    to: str
    text: str
    at: AwareDatetime


class Answer(BaseModel):
    id: str
    state: str
    at: datetime
    attempts: int = 0
    sent: int = 0


@app.post("/reminders", status_code=201)
async def create(reminder: Reminder) -> Answer:
    task = await send.at(reminder.at).asubmit(reminder.to, reminder.text)
    return Answer(id=task.id, state=task.state, at=task.run_at)


@app.get("/reminders/{task_id}")
async def show(task_id: str, client: DulyClient) -> Answer:
    try:
        task = await client.get(task_id)
    except duly.NotFound:
        raise HTTPException(404, "there is no such reminder") from None
    count = sent.get(task.id, 0)
    return Answer(id=task.id, state=task.state, at=task.run_at, attempts=task.attempt, sent=count)


@app.delete("/reminders/{task_id}")
async def cancel(task_id: str, client: DulyClient) -> Answer:
    try:
        task = await client.cancel(task_id)
    except duly.NotFound:
        raise HTTPException(404, "there is no such reminder") from None
    except duly.Conflict as error:
        raise HTTPException(409, error.detail) from None
    return Answer(id=task.id, state=task.state, at=task.run_at)


@app.post("/hooks/sent", status_code=204)
async def note_sent(request: Request) -> None:
    reminder = request.scope["duly"].payload["reminder"]
    sent[reminder] = sent.get(reminder, 0) + 1
