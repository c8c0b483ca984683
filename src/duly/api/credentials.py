"""Authentication: API key, JWT, or signed request. Authorisation is in asgi.py.

| event | what happens |
|---|---|
| no credential, two kinds at once | 401 |
| one character changed, expired, revoked, unknown | 401, all with the same answer |
| a signature older or newer than 300 s, or used before | 401 |
| a random or mistyped key | 401 without a look-up: its check characters do not fit |
| a key of another kind (bearer key signs, signing key bears) | 401 |
| the database is unreachable | 503: no request is accepted without authentication |
| a session cookie beside a credential | the credential counts; the cookie is not read |
| a session cookie with a change from another origin | 403: another site's page sent it |
"""

import base64
import hashlib
import hmac
import re
from datetime import datetime
from functools import partial

from duly.api.admission import Admission
from duly.api.bearer_tokens import JwtSettings, TokenReader
from duly.api.problems import ApiProblem, Code
from duly.api.rate_limit import RequestRates
from duly.api.request import Call
from duly.api.session_tokens import LINK_S, SESSION_S, SessionTokens, TokenContent, TokenKind
from duly.domain.access import Access, Credential, Reach
from duly.domain.api_keys import KEY_PREFIX, is_key_id, read_key_text
from duly.domain.limits import TENANT_PATTERN
from duly.environment import Clock, Environment
from duly.store.database import Database
from duly.store.keys import Key, claim_nonce, hash_secret, read_key
from duly.store.tenants import Tenant, find_tenant
from duly.ttl_cache import TtlCache

SIGNATURE_AGE_MAX_S = 300
# First line of what is signed, and prefix of the signature.
SIGNATURE_VERSION = "v1"
NONCE_CHARACTERS_MAX = 128
NONCE_CHARACTERS_MIN = 8
TOKEN_CHARACTERS_MAX = 8192
# Bytes of a signed body that are read before its signature is verified; they all count as one
# caller's.
UNPROVEN_BYTES_MAX = 256 * 1024
UNPROVEN = "unproven"
CONTENT_DIGEST = re.compile(r"(?:^|, ?)sha-256=:(?P<sha256>[A-Za-z0-9+/]{43}=):(?:,|$)")
SESSION_COOKIE = "duly_session"
# Methods that change nothing.
SAFE_METHODS = frozenset({"GET", "HEAD"})
REFUSAL = "the credential is missing, wrong, expired or revoked"


class Authenticator:
    """Looks up keys and tenants over `reserved` connections where there are some: a worker's
    heartbeat needs its key, and must not wait for the shared pool."""

    def __init__(
        self,
        database: Database,
        environment: Environment,
        tokens: JwtSettings | None,
        reserved: Database | None = None,
        admission: Admission | None = None,
    ) -> None:
        self.database = database
        self.reserved = reserved or database
        self.admission = admission or Admission()
        self.request_rates = RequestRates(database, environment)
        self.clock: Clock = environment.clock
        self.tokens = None if tokens is None else TokenReader(tokens, environment.clock)
        self.keys: TtlCache[str, Key | None] = TtlCache(
            environment.clock, lambda key_id: read_key(self.reserved, key_id)
        )
        self.tenants: TtlCache[str, Tenant | None] = TtlCache(environment.clock, self.find_named)
        self.sessions = SessionTokens(self.reserved, environment)

    async def close(self) -> None:
        await self.keys.close()
        await self.tenants.close()

    async def find_named(self, name: str) -> Tenant | None:
        """Only names that a tenant can have reach the database, which takes not every text."""
        return await find_tenant(self.reserved, name) if TENANT_PATTERN.fullmatch(name) else None

    async def identify(self, call: Call, bytes_max: int) -> Credential:
        """Authenticate before the body is read where possible: an unauthenticated body takes no
        memory."""
        bearer, signer = call.header(b"authorization"), call.header(b"x-duly-key")
        if bearer is None and signer is None:
            return await self.in_session(call)
        if bearer is not None and signer is not None:
            raise unauthenticated()
        if signer is not None:
            return await self.signed(call, signer, bytes_max)
        assert bearer is not None
        scheme, _, token = bearer.partition(" ")
        if scheme.lower() != "bearer":
            raise unauthenticated()
        return await self.borne(token)

    async def borne(self, token: str) -> Credential:
        if not token or len(token) > TOKEN_CHARACTERS_MAX:
            raise unauthenticated()
        if token.startswith(KEY_PREFIX + "_"):
            return await self.keyed(token)
        return await self.tokened(token)

    # Sessions of browsers ------------------------------------------------------------------------

    async def in_session(self, call: Call) -> Credential:
        """By the cookie that a sign-in set. A page of another site cannot read it, and is not
        believed where its browser sent it all the same."""
        token = cookie_value(call, SESSION_COOKIE)
        if token is None:
            raise unauthenticated()
        await self.sessions.load()
        content = self.sessions.opened(TokenKind.SESSION, token)
        if content is None:
            raise unauthenticated()
        if call.method not in SAFE_METHODS and not self.is_same_origin(call):
            raise ApiProblem(Code.FORBIDDEN, "a session changes things from its own origin only")
        return await self.credential_in(content)

    async def credential_in(self, content: TokenContent) -> Credential:
        if content.key_id is not None:
            return credential_of(await self.live_key(content.key_id))
        return await self.credential_for(
            content.tenant_name, content.actor, Access(content.access), Reach(content.reach)
        )

    async def signed_in(self, token: str) -> tuple[Credential, TokenContent]:
        """What a session of this key or JWT holds; it does not outlive the credential."""
        credential = await self.borne(token)
        await self.sessions.load()
        expires_at = self.sessions.expiry(SESSION_S)
        nonce = self.sessions.nonce()
        if credential.key_id is not None:
            return credential, TokenContent(expires_at, nonce, credential.key_id)
        claims = None if self.tokens is None else self.tokens.read(token)
        assert claims is not None, "it was believed a moment ago"
        content = TokenContent(
            min(expires_at, claims.expires_at),
            nonce,
            actor=credential.actor,
            tenant_name=credential.tenant_name,
            access=credential.access.value,
            reach=credential.reach.value,
        )
        return credential, content

    async def linked(self, token: str) -> tuple[Credential, TokenContent]:
        """The session that a sign-in link stands for; the link is used up."""
        await self.sessions.load()
        link = self.sessions.opened(TokenKind.LINK, token)
        if link is None or link.key_id is None:
            raise unauthenticated()
        credential = credential_of(await self.live_key(link.key_id))
        if not await claim_nonce(self.database, link.key_id, link.nonce, 2 * LINK_S):
            raise unauthenticated()
        expires_at = self.sessions.expiry(SESSION_S)
        return credential, TokenContent(expires_at, self.sessions.nonce(), link.key_id)

    def is_same_origin(self, call: Call) -> bool:
        """As the browser says; a program that is no browser sends neither header and has no
        business with cookies."""
        site = call.header(b"sec-fetch-site")
        if site is not None:
            return site == "same-origin"
        origin, host = call.header(b"origin"), call.header(b"host")
        return origin is not None and host is not None and origin.partition("://")[2] == host

    async def keyed(self, token: str) -> Credential:
        _, _, rest = token.partition("_")
        key_id, _, secret = rest.partition("_")
        # Only before a look-up: the check characters of a known key say nothing that its hash
        # does not.
        if not self.keys.knows(key_id) and read_key_text(token) is None:
            raise unauthenticated()
        key = await self.live_key(key_id)
        if key.secret_hash is None or not hmac.compare_digest(key.secret_hash, hash_secret(secret)):
            raise unauthenticated()
        return credential_of(key)

    async def live_key(self, key_id: str) -> Key:
        if not self.keys.knows(key_id) and not is_key_id(key_id):
            # Neither looked up nor remembered: a guess costs nothing but its check characters.
            raise unauthenticated()
        key = await self.keys.get(key_id)
        if key is None or not key.is_live or has_passed(key.expires_at, self.clock):
            raise unauthenticated()
        return key

    async def signed(self, call: Call, key_id: str, bytes_max: int) -> Credential:
        """Verify HMAC-SHA256 over all that decides what a request does; `sign` lists the parts.
        With the body's digest in a header the body is not read before the signature is verified;
        without it only a short body is, and few at a time."""
        timestamp = call.header(b"x-duly-timestamp") or ""
        nonce = call.header(b"x-duly-nonce") or ""
        signature = call.header(b"x-duly-signature") or ""
        if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12):
            raise unauthenticated()
        if abs(self.clock.now().timestamp() - int(timestamp)) > SIGNATURE_AGE_MAX_S:
            raise unauthenticated()
        is_ungated = nonce.isascii() and nonce.isprintable()
        if not (is_ungated and NONCE_CHARACTERS_MIN <= len(nonce) <= NONCE_CHARACTERS_MAX):
            raise unauthenticated()
        key = await self.live_key(key_id)
        if key.signing_secret is None:
            raise unauthenticated()
        told = digest_told(call)
        if told is not None:
            digest = told
        elif call.method == "GET":
            digest = hashlib.sha256(b"").digest()
        else:
            digest = hashlib.sha256(await self.read_unproven(call, bytes_max)).digest()
        expected = signature_over(
            key.signing_secret,
            call.method,
            target_of(call),
            timestamp,
            nonce,
            content_type=call.header(b"content-type") or "",
            idempotency_key=call.header(b"idempotency-key") or "",
            digest=digest,
        )
        if not hmac.compare_digest(expected.encode(), signature.encode("latin-1")):
            raise unauthenticated()
        if not await claim_nonce(self.database, key_id, nonce, 2 * SIGNATURE_AGE_MAX_S):
            raise unauthenticated()
        if told is not None:
            call.check_body = partial(refuse_another_body, told)
        return credential_of(key)

    async def read_unproven(self, call: Call, bytes_max: int) -> bytes:
        """Read a body that must be complete before its signature can be verified."""
        is_told = b"content-length" in call.headers
        if is_told and call.body_size(bytes_max) > UNPROVEN_BYTES_MAX:
            detail = (
                f"a signed body over {UNPROVEN_BYTES_MAX} bytes needs the Content-Digest header"
            )
            raise ApiProblem(Code.BODY_TOO_LARGE, detail)
        size = call.body_size(UNPROVEN_BYTES_MAX)
        if size > self.admission.limits.body_bytes_free:
            await call.admit(self.admission.bodies, UNPROVEN, size)
        return await call.read_body(UNPROVEN_BYTES_MAX)

    async def tokened(self, token: str) -> Credential:
        claims = None if self.tokens is None else self.tokens.read(token)
        if claims is None:
            raise unauthenticated()
        actor = f"jwt:{claims.subject[:128]}"
        return await self.credential_for(claims.tenant_name, actor, claims.access, claims.reach)

    async def credential_for(
        self, tenant_name: str, actor: str, access: Access, reach: Reach
    ) -> Credential:
        tenant = await self.tenants.get(tenant_name)
        if tenant is None:
            raise unauthenticated()
        return Credential(
            actor,
            tenant.id,
            tenant.name,
            access,
            reach,
            is_suspended=tenant.suspended_at is not None,
        )


def cookie_value(call: Call, name: str) -> str | None:
    for part in (call.header(b"cookie") or "").split(";"):
        key, _, value = part.strip().partition("=")
        if key == name and value:
            return value
    return None


def credential_of(key: Key) -> Credential:
    return Credential(
        actor=f"key:{key.id}",
        tenant=key.tenant,
        tenant_name=key.tenant_name,
        access=Access(key.role),
        reach=Reach(key.reach),
        types=None if key.types is None else frozenset(key.types),
        key_id=key.id,
        is_suspended=key.is_suspended,
        request_rate=key.request_rate,
    )


def has_passed(instant: datetime | None, clock: Clock) -> bool:
    return instant is not None and clock.now() >= instant


def sign(
    secret: bytes,
    method: str,
    target: str,
    timestamp: str,
    nonce: str,
    *,
    content_type: str = "",
    idempotency_key: str = "",
    body: bytes = b"",
) -> str:
    """The signature of a request, as clients compute it (docs/how-to/sign-requests.md)."""
    return signature_over(
        secret,
        method,
        target,
        timestamp,
        nonce,
        content_type=content_type,
        idempotency_key=idempotency_key,
        digest=hashlib.sha256(body).digest(),
    )


def signature_over(
    secret: bytes,
    method: str,
    target: str,
    timestamp: str,
    nonce: str,
    *,
    content_type: str,
    idempotency_key: str,
    digest: bytes,
) -> str:
    """The texts are header bytes read as latin-1, so that exactly what was sent is signed."""
    lines = (SIGNATURE_VERSION, method, target, timestamp, nonce, content_type, idempotency_key)
    text = "\n".join((*lines, digest.hex())).encode("latin-1")
    return f"{SIGNATURE_VERSION}={hmac.new(secret, text, hashlib.sha256).hexdigest()}"


def digest_told(call: Call) -> bytes | None:
    """The body digest that the request declares (RFC 9530)."""
    told = call.header(b"content-digest")
    if told is None:
        return None
    found = CONTENT_DIGEST.search(told)
    if found is None:
        raise unauthenticated()
    return base64.b64decode(found["sha256"])


def refuse_another_body(digest: bytes, body: bytes) -> None:
    if hashlib.sha256(body).digest() != digest:
        raise unauthenticated()


def target_of(call: Call) -> str:
    raw: bytes = call.scope.get("raw_path") or call.path.encode()
    query: bytes = call.scope["query_string"]
    return (raw + (b"?" + query if query else b"")).decode("latin-1")


def unauthenticated() -> ApiProblem:
    return ApiProblem(Code.UNAUTHENTICATED, REFUSAL, headers={"www-authenticate": "Bearer"})
