"""Signed texts that stand for a credential for a while: a browser's session, and a sign-in link.

Nothing is stored for them. A session of a key is looked up with its key at each call, so that a
revoked key ends its sessions; one of a JWT ends with the JWT. A link becomes a session once.

| event | what happens |
|---|---|
| altered, cut, of another installation, expired | None: the caller is not known |
| a link where a session is wanted, or the other way round | None: each kind has a key of its own |
| used on another node, or after a restart | the same answer: the secret is in the database |
"""

import base64
import hashlib
import hmac
from enum import StrEnum

import msgspec

from duly.environment import Environment
from duly.store.database import Database
from duly.store.installation_secrets import CURSORS, read_installation_secret

SESSION_S = 12 * 3600.0
LINK_S = 15 * 60.0
TOKEN_CHARACTERS_MAX = 2048
NONCE_BITS = 128
SIGNATURE_BYTES = 32


class TokenKind(StrEnum):
    SESSION = "session"
    LINK = "link"


class TokenContent(msgspec.Struct, frozen=True, omit_defaults=True):
    """`key_id` of a key; else the claims of a JWT. `nonce` makes each link another."""

    expires_at: float
    nonce: str
    key_id: str | None = None
    actor: str = ""
    tenant_name: str = ""
    access: str = ""
    reach: str = ""


class SessionTokens:
    """Seals and opens. `load` comes before the first use."""

    def __init__(self, database: Database, environment: Environment) -> None:
        self.database = database
        self.environment = environment
        self.secret = b""

    async def load(self) -> None:
        if not self.secret:
            self.secret = await read_installation_secret(self.database, CURSORS)

    def nonce(self) -> str:
        return f"{self.environment.entropy.getrandbits(NONCE_BITS):032x}"

    def expiry(self, lasts_s: float) -> float:
        return self.environment.clock.now().timestamp() + lasts_s

    def seal(self, kind: TokenKind, content: TokenContent) -> str:
        text = msgspec.json.encode(content)
        return encoded(self.signature(kind, text) + text)

    def opened(self, kind: TokenKind, token: str) -> TokenContent | None:
        if len(token) > TOKEN_CHARACTERS_MAX:
            return None
        raw = decoded(token)
        signature, text = raw[:SIGNATURE_BYTES], raw[SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, self.signature(kind, text)):
            return None
        content = msgspec.json.decode(text, type=TokenContent)
        now = self.environment.clock.now().timestamp()
        return content if now < content.expires_at else None

    def signature(self, kind: TokenKind, text: bytes) -> bytes:
        assert self.secret, "loaded before the first use"
        key = hmac.digest(self.secret, f"duly {kind} v1".encode(), hashlib.sha256)
        return hmac.digest(key, text, hashlib.sha256)


def encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def decoded(token: str) -> bytes:
    """Empty for what is no base64: its signature then fits nothing."""
    try:
        return base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except ValueError:
        return b""
