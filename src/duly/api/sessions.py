"""Sessions of browsers: an API key, a JWT or a sign-in link becomes an HttpOnly cookie, once.

The cookie is sent by pages of this origin only (SameSite=Strict), scripts cannot read it, and a
call that changes something must also name this origin (`Authenticator.identify`).
"""

from datetime import UTC, datetime
from typing import Annotated
from urllib.parse import quote

import msgspec
from msgspec import Meta

from duly.api.asgi import Endpoint, Kind
from duly.api.credentials import SESSION_COOKIE, Authenticator
from duly.api.json_body import decode
from duly.api.problems import ApiProblem, Code, invalid
from duly.api.request import Answer, Call
from duly.api.session_tokens import (
    LINK_S,
    TOKEN_CHARACTERS_MAX,
    SessionTokens,
    TokenContent,
    TokenKind,
)
from duly.domain.access import (
    ADMINS,
    OBSERVERS,
    OPERATORS,
    PRODUCERS,
    READERS,
    Access,
    Credential,
    Reach,
)
from duly.domain.api_keys import read_key_text
from duly.domain.limits import Problem

TAG = "Sessions"
BODY_BYTES_MAX = 16 * 1024
# Longest JWT or key that signs in.
CREDENTIAL_CHARACTERS_MAX = 8192


class SessionRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One of the two: an API key or JWT, or the token of a sign-in link."""

    credential: Annotated[str, Meta(min_length=1, max_length=CREDENTIAL_CHARACTERS_MAX)] | None = (
        None
    )
    link: Annotated[str, Meta(min_length=1, max_length=TOKEN_CHARACTERS_MAX)] | None = None


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """Who is signed in, and what this role may do."""

    actor: str
    tenant: str
    role: Access
    reach: Reach
    types: list[str] | None
    can: list[str]
    expires_at: datetime | None


class LinkView(msgspec.Struct, frozen=True, kw_only=True):
    """`fragment` goes behind the address of the dashboard; it signs in once."""

    fragment: str
    expires_at: datetime


class SessionRoutes:
    def __init__(self, authenticator: Authenticator, *, is_secure: bool = False) -> None:
        self.authenticator = authenticator
        self.is_secure = is_secure

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="POST",
                path="/v1/session",
                summary="Sign a browser in",
                handler=self.sign_in,
                kind=Kind.OPEN,
                body=SessionRequest,
                body_bytes_max=BODY_BYTES_MAX,
                answers={201: SessionView},
                refusals=(
                    Code.UNAUTHENTICATED,
                    Code.FORBIDDEN,
                    Code.BODY_TOO_LARGE,
                    Code.UNSUPPORTED_MEDIA_TYPE,
                    Code.INVALID,
                ),
                tag=TAG,
            ),
            Endpoint(
                method="DELETE",
                path="/v1/session",
                summary="Sign a browser out",
                handler=self.sign_out,
                kind=Kind.OPEN,
                answers={204: None},
                tag=TAG,
            ),
            Endpoint(
                method="GET",
                path="/v1/session",
                summary="Who is signed in, and what the credential may do; 204: no caller is known",
                handler=self.show,
                kind=Kind.OPEN,
                answers={200: SessionView, 204: None},
                tag=TAG,
            ),
            Endpoint(
                method="POST",
                path="/v1/session/links",
                summary="A link that signs a browser in once, as the caller",
                handler=self.make_link,
                kind=Kind.HOT,
                access=READERS,
                answers={201: LinkView},
                tag=TAG,
            ),
        ]

    async def sign_in(self, call: Call) -> Answer:
        if not self.authenticator.is_same_origin(call):
            raise ApiProblem(Code.FORBIDDEN, "a session is made by a page of this origin only")
        media_type = (call.header(b"content-type") or "").partition(";")[0].strip().lower()
        if media_type != "application/json":
            raise ApiProblem(
                Code.UNSUPPORTED_MEDIA_TYPE, "the content type must be application/json"
            )
        raw = await call.read_body(BODY_BYTES_MAX)
        asked = decode(raw, SessionRequest)
        if (asked.credential is None) == (asked.link is None):
            raise invalid([Problem("/credential", "give either credential or link")])
        tokens = self.authenticator.sessions
        if asked.link is not None:
            credential, content = await self.authenticator.linked(asked.link)
        else:
            assert asked.credential is not None
            credential, content = await self.authenticator.signed_in(asked.credential)
        lasts_s = max(0.0, content.expires_at - tokens.environment.clock.now().timestamp())
        cookie = cookie_of(
            tokens.seal(TokenKind.SESSION, content), lasts_s, is_secure=self.is_secure
        )
        return Answer(201, view_of(credential, content.expires_at), {"set-cookie": cookie})

    async def sign_out(self, _call: Call) -> Answer:
        """The cookie goes; a key's sessions end everywhere when the key is revoked."""
        return Answer(204, None, {"set-cookie": cookie_of("", 0.0, is_secure=self.is_secure)})

    async def show(self, call: Call) -> Answer:
        """A page asks this first; a missing session is an answer, not an error."""
        try:
            credential = await self.authenticator.identify(call, 0)
        except ApiProblem as problem:
            if problem.code is not Code.UNAUTHENTICATED:
                raise
            return Answer(204)
        return Answer(200, view_of(credential, None))

    async def make_link(self, call: Call) -> Answer:
        key_id = call.credential.key_id
        if key_id is None:
            raise ApiProblem(Code.FORBIDDEN, "a sign-in link is made with an API key")
        return Answer(201, await make_link(self.authenticator.sessions, key_id))


async def dashboard_url(authenticator: Authenticator, url: str, key: str | None) -> str | None:
    """A sign-in link for the key of local clients; None where it is not known."""
    known = None if key is None else read_key_text(key)
    if known is None:
        return None
    made = await make_link(authenticator.sessions, known.id)
    return f"{url}/{made.fragment}"


async def make_link(tokens: SessionTokens, key_id: str) -> LinkView:
    """Its token is behind `#`, which no server, proxy or log is sent."""
    await tokens.load()
    content = TokenContent(tokens.expiry(LINK_S), tokens.nonce(), key_id)
    token = tokens.seal(TokenKind.LINK, content)
    return LinkView(
        fragment=f"#/signin?link={quote(token)}", expires_at=instant(content.expires_at)
    )


def cookie_of(value: str, lasts_s: float, *, is_secure: bool) -> str:
    secure = "; Secure" if is_secure else ""
    return (
        f"{SESSION_COOKIE}={value}; Path=/; Max-Age={int(lasts_s)}; HttpOnly; SameSite=Strict"
        f"{secure}"
    )


def view_of(credential: Credential, expires_at: float | None) -> SessionView:
    groups = {
        "submit": PRODUCERS,
        "observe": OBSERVERS,
        "operate": OPERATORS,
        "administer": ADMINS,
    }
    can = [name for name, roles in groups.items() if credential.access in roles]
    return SessionView(
        actor=credential.actor,
        tenant=credential.tenant_name,
        role=credential.access,
        reach=credential.reach,
        types=None if credential.types is None else sorted(credential.types),
        can=can,
        expires_at=None if expires_at is None else instant(expires_at),
    )


def instant(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
