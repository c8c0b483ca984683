"""Headers that a tenant may set, and the form of a key in a header."""

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.domain.limits import headers_reason
from duly.domain.webhook_headers import header_form, sendable


@pytest.mark.parametrize(
    "name",
    [
        *("Host", "Connection", "Keep-Alive", "TE", "Trailer", "Transfer-Encoding", "Upgrade"),
        *("Content-Length", "content-type", "Content-Encoding", "Expect", "Proxy-Authorization"),
        *("Webhook-Id", "webhook-signature", "WEBHOOK-TIMESTAMP", "Duly-Fence", "duly-anything"),
        *("Idempotency-Key", "Traceparent", "tracestate", "User-Agent", "Accept-Encoding"),
        *("X-Forwarded-For", "Forwarded", "X-Real-IP", "Via", "Date"),
    ],
)
def test_a_header_of_ours_or_of_the_framing_cannot_be_set(name: str) -> None:
    """A second length splits one request into two; a second signature forges it."""
    assert headers_reason({name: "1"})
    assert sendable({name: "1"}) == {}


@pytest.mark.parametrize("value", ["a\r\nb", "a\nb", "a\tb", "\x00", "\u00e4", "\x7f", " a", "a "])
def test_a_value_that_arrives_differently_is_refused(value: str) -> None:
    """What a server strips, folds or decodes is not what the tenant wrote."""
    assert headers_reason({"X-A": value})
    assert sendable({"X-A": value}) == {}


def test_one_name_in_two_spellings_is_refused() -> None:
    """Which of the two arrives first is up to the receiver's server."""
    assert headers_reason({"X-A": "1", "x-a": "2"})


def test_ordinary_headers_are_taken() -> None:
    """A rule that refuses everything would pass every other test here."""
    headers = {"X-Team": "billing", "Authorization": "Bearer a.b-c_d", "Cookie": "a=b; c", "X": ""}
    assert headers_reason(headers) is None
    assert sendable(headers) == headers


@given(st.text(min_size=1, max_size=50).filter(lambda text: "\ud800" not in text))
def test_a_key_in_a_header_is_plain_and_means_one_key(key: str) -> None:
    """Two keys in one form would make two tasks one to their receiver."""
    try:
        key.encode()
    except UnicodeEncodeError:
        return
    form = header_form(key)
    assert all("!" <= character <= "~" for character in form)
    assert unquote(form) == key


def test_an_ordinary_key_stays_as_it_is() -> None:
    """People search their logs for the key they gave."""
    key = "schedule/7:2026-01-01T00:00:00Z_#1?(a)"
    assert header_form(key) == key
