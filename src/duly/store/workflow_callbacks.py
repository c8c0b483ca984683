"""The task that tells of a workflow's end: stored in the transaction that takes its timer away."""

from collections.abc import Awaitable, Callable

import msgspec

from duly.domain.task import Policy, Submission
from duly.store.database import Session
from duly.store.policies import decode_callback
from duly.store.submit import Submitter
from duly.store.workflow_control import EndedWorkflow


class CallbackPayload(msgspec.Struct, frozen=True):
    """The body of the webhook, or the payload of the task."""

    workflow: str
    name: str
    state: str
    counts: dict[str, int]


class WorkflowCallbacks:
    def __init__(self, submitter: Submitter) -> None:
        self.submitter = submitter

    async def store(self, session: Session, ended: EndedWorkflow) -> Callable[[], Awaitable[None]]:
        """One task for each end, however often it is tried: its execution key says of which."""
        entries = await self.submitter.assign_ids([submission_of(ended)], session)
        answers = await self.submitter.store(session, entries)

        async def after() -> None:
            await self.submitter.publish_stored(entries, dict(answers))

        return after


def submission_of(ended: EndedWorkflow) -> Submission:
    callback = decode_callback(ended.callback)
    payload = CallbackPayload(str(ended.id), ended.name, ended.state, ended.counts)
    return Submission(
        tenant=ended.tenant,
        type=callback.type,
        payload=msgspec.json.encode(payload).decode(),
        url=callback.url,
        pool=callback.pool,
        policy=Policy(headers=callback.headers),
        execution_key=f"{ended.id}:end",
    )
