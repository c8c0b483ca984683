"""The handler of the executor: the scheme of a task's URL says how it is delivered."""

from duly.domain.notifications import COMMAND_SCHEME, KEY_PREFIX, MAIL_SCHEME
from duly.domain.states import Outcome
from duly.execution.attempt import AttemptResult
from duly.execution.command import CommandRunner
from duly.execution.mail import Mailer
from duly.execution.webhooks.sender import WebhookSender
from duly.store.lease import Lease


class Targets:
    """`await targets(lease)` is one attempt. Mail and commands are for notifications alone: the
    execution keys of these are none that a submitter can give."""

    def __init__(self, webhooks: WebhookSender, mail: Mailer, command: CommandRunner) -> None:
        self.webhooks = webhooks
        self.mail = mail
        self.command = command

    async def __call__(self, lease: Lease) -> AttemptResult:
        scheme = (lease.url or "").partition(":")[0]
        if scheme not in (MAIL_SCHEME, COMMAND_SCHEME):
            return await self.webhooks(lease)
        if not lease.execution_key.startswith(KEY_PREFIX):
            error = f"only notifications have targets of the form {scheme}:"
            return AttemptResult(Outcome.REJECTED, error=error, error_kind="address_refused")
        return await (self.mail if scheme == MAIL_SCHEME else self.command)(lease)

    async def close(self) -> None:
        await self.webhooks.close()
