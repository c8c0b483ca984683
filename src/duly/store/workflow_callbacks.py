"""The task that tells of a workflow's end: stored in the transaction that takes its timer away."""

from collections.abc import Awaitable, Callable

import msgspec

from duly.domain.states import State
from duly.domain.task import Policy, Submission
from duly.store.database import Session
from duly.store.policies import decode_callback
from duly.store.submit import Submitter
from duly.store.workflow_compensations import read_not_undone
from duly.store.workflow_control import EndedWorkflow


class EndedCompensation(msgspec.Struct, frozen=True):
    """As the API tells it."""

    state: str
    completed: int
    failed: int
    not_undone: list[str]


class CallbackPayload(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of the webhook, or the payload of the task."""

    workflow: str
    name: str
    state: str
    counts: dict[str, int]
    # Of one that undid what completed: how that ended, and what stays done.
    compensation: EndedCompensation | None = None


class WorkflowCallbacks:
    def __init__(self, submitter: Submitter) -> None:
        self.submitter = submitter

    async def store(self, session: Session, ended: EndedWorkflow) -> Callable[[], Awaitable[None]]:
        """One task for each end, however often it is tried: its execution key says of which."""
        told = submission_of(ended, await read_compensation(session, ended))
        entries = await self.submitter.assign_ids([told], session)
        answers = await self.submitter.store(session, entries)

        async def after() -> None:
            await self.submitter.publish_stored(entries, dict(answers))

        return after


async def read_compensation(session: Session, ended: EndedWorkflow) -> EndedCompensation | None:
    found = ended.compensation
    if found is None:
        return None
    names: list[str] = []
    if found.state is not State.COMPLETED:
        is_cancelled = found.state is State.CANCELLED
        names = await read_not_undone(
            *(session, ended.tenant, ended.id, ended.generated), is_cancelled=is_cancelled
        )
    return EndedCompensation(found.state.value, found.completed, found.failed, names)


def submission_of(ended: EndedWorkflow, compensation: EndedCompensation | None) -> Submission:
    callback = decode_callback(ended.callback)
    payload = CallbackPayload(
        *(str(ended.id), ended.name, ended.state, ended.counts), compensation=compensation
    )
    return Submission(
        tenant=ended.tenant,
        type=callback.type,
        payload=msgspec.json.encode(payload).decode(),
        url=callback.url,
        pool=callback.pool,
        policy=Policy(headers=callback.headers),
        execution_key=f"{ended.id}:end",
    )
