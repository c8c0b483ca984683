"""The tasks of the reminder service, for the API, which submits them, and the worker."""

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import duly
from duly import Context, Worker, inject, resource

OUTBOX = Path(os.environ.get("REMINDERS_OUTBOX", "outbox.txt"))
# Where this service can be reached: it is told by a webhook what was sent.
SITE = os.environ.get("REMINDERS_SITE", "http://127.0.0.1:8000")

worker = Worker(pools=["reminders"], concurrency=20)


@resource
def shared_client() -> Iterator[duly.Client]:
    """One for all attempts of this process."""
    with duly.Client() as client:
        yield client


@worker.task("reminder.send", retry={"max_attempts": 5, "initial_s": 1}, timeout_s=20)
def send(ctx: Context, to: str, text: str, client: duly.Client = inject(shared_client)) -> None:
    """Tried again while the mail server is away; a wrong address never will be right."""
    if "@" not in to:
        raise duly.Reject(f"{to!r} is no address")
    deliver(ctx, to, text)
    # A second attempt tells it once all the same.
    key = f"sent:{ctx.execution_key}"
    told = {"reminder": ctx.id, "to": to}
    client.submit("reminder.sent", told, url=f"{SITE}/hooks/sent", idempotency_key=key)


@worker.cron("0 8 * * *", name="reminders of the day", timezone="Europe/Berlin")
@worker.task("reminder.digest")
def digest(ctx: Context, client: duly.Client = inject(shared_client)) -> int:
    """How many reminders are still to come; every morning."""
    waiting = sum(1 for _ in client.tasks(type="reminder.send", state="SCHEDULED"))
    ctx.log.info("reminders to come", waiting=waiting)
    return waiting


def deliver(ctx: Context, to: str, text: str) -> None:
    """In place of a mail server: it is away while there is a file "away" beside the outbox."""
    if OUTBOX.with_name("away").exists():
        raise ConnectionError("the mail server is away")
    with OUTBOX.open("a") as outbox:
        outbox.write(f"{datetime.now(UTC):%FT%TZ} {to} {text} ({ctx.execution_key})\n")
