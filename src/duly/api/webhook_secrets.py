"""Webhook secret endpoints: list, create, delete. A secret is returned once, when it is created;
creating one is also the rotation, since earlier ones keep signing for a while."""

import re
from base64 import b64encode
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from duly.api.asgi import Endpoint, Kind
from duly.api.problems import ApiProblem, Code, not_found
from duly.api.request import Answer, Call
from duly.api.wire import Page, page
from duly.domain import limits
from duly.domain.access import ADMINS
from duly.environment import Environment
from duly.store.webhook_secrets import (
    SECRETS_PER_TENANT_MAX,
    SecretFacts,
    delete_secret,
    list_secrets,
    rotate_secret,
)

TAG = "Webhook secrets"
GRACE_S_DEFAULT = 24 * 3600.0
# As Standard Webhooks spells a secret that is shared.
PREFIX = "whsec_"
ID_PATTERN = re.compile(r"[a-z0-9]{1,32}")


class SecretRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long the secrets before go on signing beside the new one."""

    grace_s: Annotated[float, Meta(ge=0, le=limits.GRACE_S_MAX)] = GRACE_S_DEFAULT


class SecretView(msgspec.Struct, frozen=True, kw_only=True):
    """`expires_at`: until then it signs beside a newer one."""

    id: str
    created_at: datetime
    created_by: str
    expires_at: datetime | None


class MadeSecretView(SecretView, frozen=True, kw_only=True):
    """`secret` is shown this once; a repeated call is answered without it."""

    secret: str | None = None


@dataclass(frozen=True)
class WebhookSecretRoutes:
    environment: Environment

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="GET",
                path="/v1/webhook-secrets",
                summary="List webhook secrets, without their values",
                handler=self.list_page,
                kind=Kind.READ,
                access=ADMINS,
                answers={200: Page[SecretView]},
                tag=TAG,
            ),
            Endpoint(
                method="POST",
                path="/v1/webhook-secrets",
                summary="Make a webhook secret, shown once; those before sign on for a while",
                handler=self.rotate,
                kind=Kind.CONTROL,
                access=ADMINS,
                body=SecretRequest,
                is_body_optional=True,
                answers={201: MadeSecretView},
                refusals=(Code.MALFORMED_BODY, Code.INVALID, Code.TOO_MANY),
                tag=TAG,
            ),
            Endpoint(
                method="DELETE",
                path="/v1/webhook-secrets/{id}",
                summary="Delete a webhook secret: it signs nothing more, within seconds",
                handler=self.delete,
                kind=Kind.CONTROL,
                access=ADMINS,
                answers={204: None},
                refusals=(Code.NOT_FOUND,),
                tag=TAG,
            ),
        ]

    async def list_page(self, call: Call) -> Answer:
        found = await list_secrets(call.session, call.tenant)
        return Answer(200, page([secret_view(facts) for facts in found], None))

    async def rotate(self, call: Call, asked: SecretRequest) -> Answer:
        made = await rotate_secret(
            call.session, self.environment, call.tenant, asked.grace_s, call.credential.actor
        )
        if made is None:
            detail = f"a tenant may have {SECRETS_PER_TENANT_MAX} webhook secrets; delete some"
            raise ApiProblem(Code.TOO_MANY, detail)
        facts, secret = made
        call.note("webhook_secret.create", facts.id, grace_s=asked.grace_s)
        text = PREFIX + b64encode(secret).decode()
        return Answer(201, made_view(facts, text), kept=made_view(facts, None))

    async def delete(self, call: Call) -> Answer:
        secret_id = call.params["id"]
        is_known = ID_PATTERN.fullmatch(secret_id) is not None
        if not is_known or not await delete_secret(call.session, call.tenant, secret_id):
            raise not_found("webhook secret", secret_id)
        call.note("webhook_secret.delete", secret_id)
        return Answer(204)


def secret_view(facts: SecretFacts) -> SecretView:
    return msgspec.convert(facts._asdict(), SecretView)


def made_view(facts: SecretFacts, text: str | None) -> MadeSecretView:
    return msgspec.convert(facts._asdict() | {"secret": text}, MadeSecretView)
