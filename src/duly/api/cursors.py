"""Cursors of lists and bulk operations: opaque, and signed for one tenant and one query.

A handler works with positions, texts of its own ("after this id"). `asgi.py` turns a position into
a cursor in the answer and back in the request, for every endpoint whose query or body has a field
`cursor`; so no list can return or accept a plain position. Nothing is stored for a cursor.

| event | what happens |
|---|---|
| altered, cut, of another installation | 400 `invalid_query` |
| used with another path, tenant or filter | 400 `invalid_query` |
| used with another `limit`, `dry_run` or `reason` | the list goes on |
| used on another node, or after a restart | the list goes on: the secret is in the database |
"""

import base64
import hashlib
import hmac
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from duly.api.problems import ApiProblem, Code
from duly.api.request import Answer, Call
from duly.domain.limits import Problem
from duly.store.database import Database
from duly.store.installation_secrets import CURSORS, read_installation_secret

# First byte of a cursor; a later layout takes another number and refuses or reads this one.
VERSION = b"\x01"
SIGNATURE_BYTES = 16
CURSOR_CHARACTERS_MAX = 512
# What may change from page to page: the rest of a query or body decides which items a list has.
UNSIGNED_FIELDS = ("cursor", "limit", "dry_run", "reason")

Cursor = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=CURSOR_CHARACTERS_MAX,
        description="`next_cursor` of the page before, with the same parameters. Opaque.",
    ),
]


class Cursors:
    """Signs and verifies. `load` comes before the call's transaction, which holds a connection."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.secret = b""

    async def load(self) -> None:
        if not self.secret:
            self.secret = await read_installation_secret(self.database, CURSORS)

    def opened(self, call: Call, asked: Any) -> Any:
        """A query or body with the position in place of its cursor; Refused if it is not one that
        this list gave for this query."""
        if asked.cursor is None:
            return asked
        return msgspec.structs.replace(asked, cursor=self.position_of(call, asked))

    def position_of(self, call: Call, asked: Any) -> str:
        content = decoded(asked.cursor)
        signature, position = content[1 : 1 + SIGNATURE_BYTES], content[1 + SIGNATURE_BYTES :]
        expected = self.signature(call, asked, position)
        if content[:1] != VERSION or not hmac.compare_digest(signature, expected):
            raise unknown_cursor()
        return position.decode()

    def sealed(self, call: Call, asked: Any, answer: Answer) -> Answer:
        """An answer with a cursor in place of the position in its `next_cursor`."""
        body: Any = answer.body
        if body.next_cursor is None:
            return answer
        position = body.next_cursor.encode()
        content = VERSION + self.signature(call, asked, position) + position
        cursor = encoded(content)
        assert len(cursor) <= CURSOR_CHARACTERS_MAX, "a position is short"
        answer.body = msgspec.structs.replace(body, next_cursor=cursor)
        return answer

    def signature(self, call: Call, asked: Any, position: bytes) -> bytes:
        assert self.secret, "loaded before the call's transaction"
        query = msgspec.to_builtins(asked)
        for name in UNSIGNED_FIELDS:
            query.pop(name, None)
        signed = [call.method, call.path, call.tenant, query, position]
        text = msgspec.json.encode(signed, order="sorted")
        return hmac.digest(self.secret, VERSION + text, hashlib.sha256)[:SIGNATURE_BYTES]


def encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def decoded(cursor: str) -> bytes:
    """Only the one spelling that `encoded` makes: a lenient reader would skip what was added."""
    try:
        content = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
    except ValueError:
        raise unknown_cursor() from None
    if encoded(content) != cursor:
        raise unknown_cursor()
    return content


def unknown_cursor() -> ApiProblem:
    detail = (
        "the cursor was altered, or belongs to another list, filter or tenant; "
        "repeat the call without it"
    )
    reason = "is not a next_cursor of this list with these parameters"
    return ApiProblem(Code.INVALID_QUERY, detail, [Problem("/cursor", reason)])
