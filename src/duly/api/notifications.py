"""Notification endpoints: who is told of dead letters, missed schedules and broken bounds, and how.
The maintenance role turns what happens into tasks; nothing is delivered here."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from duly.api.asgi import Endpoint, Kind
from duly.api.problems import ApiProblem, Code, invalid, later, not_found
from duly.api.request import Answer, Call
from duly.api.wire import Page, page
from duly.domain import limits
from duly.domain.access import ADMINS, OPERATORS, Reach
from duly.domain.addresses import OutboundRules
from duly.domain.limits import Problem, pattern_reason, submission_problems
from duly.domain.notifications import (
    COMMAND_URL,
    MAIL_CHARACTERS_MAX,
    MAIL_SCHEME,
    PER_MINUTE_DEFAULT,
    PER_MINUTE_MAX,
    RECIPIENTS_MAX,
    TASK_TYPE,
    mail_reason,
    mail_url,
    recipients_of,
)
from duly.domain.task import Policy, Submission
from duly.environment import Environment
from duly.store.notifications import (
    NOTIFICATIONS_PER_TENANT_MAX,
    Notification,
    NotificationDefinition,
    count_test,
    delete_notification,
    find_notification,
    list_notifications,
    put_notification,
    store_test,
)
from duly.store.submit import Submitter

TAG = "Notifications"
LAG_S_MAX = 30 * 86400.0
FAILURES_PER_MINUTE_MAX = 10_000.0
MINUTE_S: Final = 60

MailAddress = Annotated[str, Meta(min_length=3, max_length=MAIL_CHARACTERS_MAX)]


class Recipient(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A webhook (`url`, `headers`), mail addresses, or the command of the server's configuration,
    which only a credential of the whole installation may choose."""

    url: Annotated[str, Meta(min_length=1, max_length=limits.URL_CHARACTERS_MAX)] | None = None
    headers: dict[str, str] = {}
    mail: Annotated[list[MailAddress], Meta(min_length=1, max_length=RECIPIENTS_MAX)] | None = None
    command: bool = False


class NotificationRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is told, at least one of: dead letters, missed occurrences of schedules, a ready task
    that waits longer than `lag_s`, more than `failures_per_minute` dead letters a minute over five
    minutes. In a minute at most `per_minute` messages leave; what comes beyond them is summed up in
    the first one of the next minute."""

    to: Recipient
    dead_letters: bool = False
    missed_schedules: bool = False
    lag_s: Annotated[float, Meta(ge=1, le=LAG_S_MAX)] | None = None
    failures_per_minute: Annotated[float, Meta(ge=0.2, le=FAILURES_PER_MINUTE_MAX)] | None = None
    per_minute: Annotated[int, Meta(ge=1, le=PER_MINUTE_MAX)] = PER_MINUTE_DEFAULT


class NotificationView(msgspec.Struct, frozen=True, kw_only=True):
    """`lag_since`, `failing_since`: since when a bound is broken; null while it holds."""

    name: str
    to: Recipient
    dead_letters: bool
    missed_schedules: bool
    lag_s: float | None
    failures_per_minute: float | None
    per_minute: int
    lag_since: datetime | None
    failing_since: datetime | None
    created_at: datetime
    updated_at: datetime
    created_by: str


class NotificationTest(msgspec.Struct, frozen=True):
    """The task that delivers the test message."""

    name: str
    task: str


@dataclass(frozen=True)
class DeliveryMeans:
    """What this server's configuration has beside webhooks."""

    outbound: OutboundRules
    has_relay: bool = False
    has_command: bool = False


@dataclass(frozen=True)
class NotificationRoutes:
    environment: Environment
    submitter: Submitter
    means: DeliveryMeans

    def endpoints(self) -> list[Endpoint]:
        path = "/v1/notifications/{name}"
        return [
            Endpoint(
                method="GET",
                path="/v1/notifications",
                summary="List notifications by name",
                handler=self.list_all,
                kind=Kind.READ,
                access=OPERATORS,
                answers={200: Page[NotificationView]},
                tag=TAG,
            ),
            Endpoint(
                method="GET",
                path=path,
                summary="Read a notification",
                handler=self.get,
                kind=Kind.READ,
                access=OPERATORS,
                answers={200: NotificationView},
                refusals=(Code.NOT_FOUND,),
                tag=TAG,
            ),
            Endpoint(
                method="PUT",
                path=path,
                summary="Make a notification, or describe it anew",
                handler=self.put,
                kind=Kind.CONTROL,
                access=ADMINS,
                body=NotificationRequest,
                answers={200: NotificationView},
                refusals=(Code.MALFORMED_BODY, Code.INVALID, Code.TOO_MANY),
                tag=TAG,
            ),
            Endpoint(
                method="DELETE",
                path=path,
                summary="Delete a notification, with what it has not told yet",
                handler=self.delete,
                kind=Kind.CONTROL,
                access=ADMINS,
                answers={204: None},
                refusals=(Code.NOT_FOUND,),
                tag=TAG,
            ),
            Endpoint(
                method="POST",
                path=f"{path}/test",
                summary="Send a message that says it is a test",
                handler=self.test,
                kind=Kind.CONTROL,
                access=OPERATORS,
                answers={202: NotificationTest},
                refusals=(Code.NOT_FOUND, Code.RATE_LIMITED),
                tag=TAG,
            ),
        ]

    async def list_all(self, call: Call) -> Answer:
        found = await list_notifications(call.session, call.tenant)
        return Answer(200, page([view_of(each) for each in found], None))

    async def get(self, call: Call) -> Answer:
        return Answer(200, view_of(await find(call)))

    async def put(self, call: Call, asked: NotificationRequest) -> Answer:
        name = call.params["name"]
        if reason := pattern_reason(name, limits.POOL_PATTERN):
            raise invalid([Problem("/name", reason)])
        if problems := [*event_problems(asked), *self.recipient_problems(asked.to)]:
            raise invalid(problems)
        if asked.to.command and call.credential.reach is not Reach.INSTALLATION:
            detail = "only a credential of the whole installation may choose the server's command"
            raise ApiProblem(Code.FORBIDDEN, detail, [Problem("/to/command", "is not permitted")])
        stored = await put_notification(
            call.session, call.tenant, name, definition_of(asked), call.credential.actor
        )
        if stored is None:
            detail = f"a tenant may have {NOTIFICATIONS_PER_TENANT_MAX} notifications; delete some"
            raise ApiProblem(Code.TOO_MANY, detail)
        call.note("notification.put", name, **facts_of(asked))
        return Answer(200, view_of(stored))

    async def delete(self, call: Call) -> Answer:
        name = known_name_of(call)
        if not await delete_notification(call.session, call.tenant, name):
            raise not_found("notification", name)
        call.note("notification.delete", name)
        return Answer(204)

    async def test(self, call: Call) -> Answer:
        found = await find(call)
        if not await count_test(call.session, call.tenant, found.name):
            detail = f"{found.name} has sent {found.per_minute} messages in this minute"
            raise later(Code.RATE_LIMITED, detail, MINUTE_S)
        now = self.environment.clock.now()
        task, publish = await store_test(call.session, self.submitter, found, call.tenant_name, now)
        call.after.append(publish)
        call.note("notification.test", found.name, task=str(task))
        return Answer(202, NotificationTest(found.name, str(task)))

    def recipient_problems(self, to: Recipient) -> list[Problem]:
        given = [to.url is not None, to.mail is not None, to.command]
        if sum(given) != 1:
            return [Problem("/to", "is one of url, mail and command")]
        if to.url is not None:
            probe = Submission(0, TASK_TYPE, url=to.url, policy=Policy(headers=to.headers))
            found = submission_problems(probe, self.environment.clock.now(), self.means.outbound)
            return [Problem(f"/to{renamed(each.pointer)}", each.reason) for each in found]
        if to.headers:
            return [Problem("/to/headers", "belong to a url")]
        if to.mail is not None:
            return self.mail_problems(to.mail)
        if not self.means.has_command:
            reason = "needs notification_command in the server's configuration"
            return [Problem("/to/command", reason)]
        return []

    def mail_problems(self, addresses: Sequence[str]) -> list[Problem]:
        if not self.means.has_relay:
            return [Problem("/to/mail", "needs smtp_url in the server's configuration")]
        reasons = [(index, mail_reason(address)) for index, address in enumerate(addresses)]
        found = [Problem(f"/to/mail/{index}", reason) for index, reason in reasons if reason]
        if not found and len(set(addresses)) < len(addresses):
            found.append(Problem("/to/mail", "has an address twice"))
        return found


def renamed(pointer: str) -> str:
    """A submission's target is a notification's recipient."""
    return pointer.removeprefix("/target")


def event_problems(asked: NotificationRequest) -> list[Problem]:
    is_any = asked.dead_letters or asked.missed_schedules
    if is_any or asked.lag_s is not None or asked.failures_per_minute is not None:
        return []
    needed = "needs one of dead_letters, missed_schedules, lag_s and failures_per_minute"
    return [Problem("", needed)]


async def find(call: Call) -> Notification:
    name = known_name_of(call)
    found = await find_notification(call.session, call.tenant, name)
    if found is None:
        raise not_found("notification", name)
    return found


def known_name_of(call: Call) -> str:
    name = call.params["name"]
    if pattern_reason(name, limits.POOL_PATTERN):
        raise not_found("notification", name)
    return name


def definition_of(asked: NotificationRequest) -> NotificationDefinition:
    to = asked.to
    url = to.url or (COMMAND_URL if to.mail is None else mail_url(to.mail))
    return NotificationDefinition(
        asked.dead_letters,
        asked.missed_schedules,
        asked.lag_s,
        asked.failures_per_minute,
        url,
        msgspec.json.encode(to.headers).decode() if to.headers else None,
        asked.per_minute,
    )


def view_of(found: Notification) -> NotificationView:
    return NotificationView(
        name=found.name,
        to=recipient_of(found),
        dead_letters=found.on_dead_letters,
        missed_schedules=found.on_missed_schedules,
        lag_s=found.lag_s,
        failures_per_minute=found.failures_per_minute,
        per_minute=found.per_minute,
        lag_since=found.lag_since,
        failing_since=found.failing_since,
        created_at=found.created_at,
        updated_at=found.updated_at,
        created_by=found.created_by,
    )


def recipient_of(found: Notification) -> Recipient:
    if found.url == COMMAND_URL:
        return Recipient(command=True)
    if found.url.startswith(f"{MAIL_SCHEME}:"):
        return Recipient(mail=recipients_of(found.url))
    headers = {} if found.headers is None else msgspec.json.decode(found.headers)
    return Recipient(url=found.url, headers=headers)


def facts_of(asked: NotificationRequest) -> dict[str, object]:
    """For the audit: URLs and headers may have secrets, so only of what kind they are."""
    to = asked.to
    kind = "webhook" if to.url is not None else "command" if to.mail is None else "mail"
    events = {
        "dead_letters": asked.dead_letters,
        "missed_schedules": asked.missed_schedules,
        "lag_s": asked.lag_s,
        "failures_per_minute": asked.failures_per_minute,
    }
    return {"to": kind, "per_minute": asked.per_minute, **events}
