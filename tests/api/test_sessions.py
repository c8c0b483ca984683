"""Sessions of browsers: a credential becomes a cookie, for pages of this origin and for a while."""

from typing import Any

import pytest

from duly.api.credentials import SESSION_COOKIE
from duly.api.session_tokens import LINK_S, SESSION_S, TokenKind
from duly.store.keys import revoke_key
from duly.testing.clock import ManualClock
from tests.api.conftest import Front, Reply

SAME_SITE = {"Sec-Fetch-Site": "same-origin"}
TASK = {"type": "mail", "delay_s": 3600}


async def sign_in(front: Front, body: dict[str, Any], **headers: str) -> Reply:
    return await front.call("POST", "/v1/session", body, key=None, headers=SAME_SITE | headers)


def cookie_in(reply: Reply) -> str:
    assert reply.status == 201, reply.body
    return reply.headers["Set-Cookie"].partition(";")[0].partition("=")[2]


async def in_session(
    front: Front, token: str, method: str, path: str, body: Any = None, **headers: str
) -> Reply:
    cookie = {"Cookie": f"{SESSION_COOKIE}={token}"}
    return await front.call(method, path, body, key=None, headers=cookie | headers)


async def test_a_key_becomes_a_session_that_scripts_cannot_read(front: Front) -> None:
    """A key in the storage of a browser is one cross-site script away from a stranger."""
    reply = await sign_in(front, {"credential": front.operator})
    attributes = reply.headers["Set-Cookie"]
    assert "HttpOnly" in attributes
    assert "SameSite=Strict" in attributes
    assert front.operator not in attributes
    assert (reply.json["role"], reply.json["can"]) == ("operator", ["submit", "observe", "operate"])
    token = cookie_in(reply)
    assert (await in_session(front, token, "GET", "/v1/tasks")).status == 200
    made = await in_session(front, token, "POST", "/v1/tasks", TASK, **SAME_SITE)
    assert made.status == 201
    shown = await in_session(front, token, "GET", "/v1/session")
    assert shown.json["actor"] == reply.json["actor"]


async def test_without_a_session_the_page_is_told_so_without_an_error(front: Front) -> None:
    """A page that opens with a red line in its console hides the next real one."""
    assert (await front.call("GET", "/v1/session", key=None)).status == 204
    assert (await in_session(front, "worthless", "GET", "/v1/session")).status == 204
    assert (await front.call("GET", "/v1/session", key=front.producer)).json["role"] == "producer"


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {},
    ],
)
async def test_another_site_changes_nothing_with_a_session(
    front: Front, headers: dict[str, str]
) -> None:
    """A form on another page, sent with the cookie, would act as the person who looks at it."""
    token = cookie_in(await sign_in(front, {"credential": front.operator}))
    refused = await in_session(front, token, "POST", "/v1/tasks", TASK, **headers)
    assert (refused.status, refused.code) == (403, "forbidden")
    opened = await front.call(
        "POST", "/v1/session", {"credential": front.operator}, key=None, headers=headers
    )
    assert opened.status == 403


async def test_a_browser_without_fetch_metadata_names_its_origin(front: Front) -> None:
    """Over plain HTTP browsers leave out the other header."""
    host = front.url.partition("://")[2]
    token = cookie_in(await sign_in(front, {"credential": front.operator}))
    origin = {"Origin": f"http://{host}"}
    assert (await in_session(front, token, "POST", "/v1/tasks", TASK, **origin)).status == 201


@pytest.mark.parametrize(
    "body",
    [{"credential": "duly_aaaaaaaaaaaa_" + "a" * 40}, {"credential": "x"}, {"link": "x"}],
)
async def test_what_is_no_credential_signs_nobody_in(front: Front, body: dict[str, Any]) -> None:
    """The same words for each: which part was wrong is what a guesser wants to know."""
    assert (await sign_in(front, body)).status == 401


@pytest.mark.parametrize("body", [{}, {"credential": "a", "link": "b"}, {"credential": ""}, []])
async def test_a_body_of_another_shape_is_a_problem(front: Front, body: Any) -> None:
    """Whatever a page sends, the answer is readable."""
    assert (await sign_in(front, body)).status in (400, 422)


async def test_a_revoked_key_ends_its_sessions(front: Front) -> None:
    """Who leaves on Friday must not click on Monday."""
    key = await front.make_key(front.tenant, "operator")
    token = cookie_in(await sign_in(front, {"credential": key}))
    async with front.database.tenant(front.tenant.id) as session:
        await revoke_key(session, front.tenant.id, key.split("_")[1])
    front.door.authenticator.keys.forget(key.split("_")[1])
    assert (await in_session(front, token, "GET", "/v1/tasks")).status == 401


async def test_a_session_ends_by_itself_and_cannot_be_prolonged(
    still_front: tuple[Front, ManualClock],
) -> None:
    """Its end is signed with it; the cookie's own lifetime is only the browser's."""
    front, clock = still_front
    token = cookie_in(await sign_in(front, {"credential": front.operator}))
    clock.advance(SESSION_S + 1)
    assert (await in_session(front, token, "GET", "/v1/tasks")).status == 401


async def test_an_altered_session_is_none(front: Front) -> None:
    """One bit is as good as another key's session."""
    token = cookie_in(await sign_in(front, {"credential": front.operator}))
    for spot in (0, len(token) // 2, -2):
        other = "A" if token[spot] != "A" else "B"
        altered = token[:spot] + other + token[spot:][1:]
        assert (await in_session(front, altered, "GET", "/v1/tasks")).status == 401


async def test_a_link_signs_in_once(front: Front) -> None:
    """A link that works twice works for the next reader of the terminal, too."""
    made = await front.call("POST", "/v1/session/links", {}, key=front.operator)
    assert made.status == 201
    token = made.json["fragment"].partition("link=")[2]
    session = cookie_in(await sign_in(front, {"link": token}))
    assert (await in_session(front, session, "GET", "/v1/tasks")).status == 200
    assert (await sign_in(front, {"link": token})).status == 401
    assert (await in_session(front, token, "GET", "/v1/tasks")).status == 401, "it is no session"
    tokens = front.door.authenticator.sessions
    content = tokens.opened(TokenKind.SESSION, session)
    assert content is not None
    assert (await sign_in(front, {"link": tokens.seal(TokenKind.SESSION, content)})).status == 401


async def test_a_link_is_good_for_a_quarter_of_an_hour(
    still_front: tuple[Front, ManualClock],
) -> None:
    """It stands in a terminal, and terminals are scrolled back."""
    front, clock = still_front
    made = await front.call("POST", "/v1/session/links", {}, key=front.operator)
    clock.advance(LINK_S + 1)
    token = made.json["fragment"].partition("link=")[2]
    assert (await sign_in(front, {"link": token})).status == 401


async def test_signing_out_takes_the_cookie(front: Front) -> None:
    """The next person at this screen starts with a key of their own."""
    reply = await front.call("DELETE", "/v1/session", key=None)
    assert reply.status == 204
    assert f"{SESSION_COOKIE}=;" in reply.headers["Set-Cookie"]
    assert "Max-Age=0" in reply.headers["Set-Cookie"]


async def test_the_page_and_its_modules_come_under_a_strict_policy(front: Front) -> None:
    """A string of a task that became a script would act as the operator who looks at it."""
    page = await front.call("GET", "/", key=None)
    assert page.status == 200
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert "unsafe" not in policy
    script = await front.call("GET", "/web/main.js", key=None)
    assert script.headers["Content-Type"].startswith("text/javascript")
    again = await front.call(
        "GET", "/web/main.js", key=None, headers={"If-None-Match": script.headers["ETag"]}
    )
    assert again.status == 304
    assert (await front.call("GET", "/web/../app.py", key=None)).status == 404


async def test_a_process_without_the_api_serves_no_page(front: Front) -> None:
    """Its probes are looked at; nothing else of it is."""
    routes = front.door.application(only_probes=True).routes
    assert routes.find("/") == ({}, {})
    assert "GET" in front.door.application().routes.find("/")[0]
