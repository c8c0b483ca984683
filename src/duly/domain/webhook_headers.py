"""Webhook headers: which of them a tenant may set, and how duly's own are spelled. Pure."""

import re
from urllib.parse import quote

# Ours, and those by which a request is framed, routed or attributed.
RESERVED = frozenset(
    {
        "accept-encoding",
        "connection",
        "date",
        "expect",
        "forwarded",
        "host",
        "http2-settings",
        "idempotency-key",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
        "via",
        "traceparent",
        "tracestate",
        "x-real-ip",
    }
)
RESERVED_PREFIXES = ("content-", "duly-", "proxy-", "webhook-", "x-forwarded-")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")
# Printable ASCII with no space at either end: what arrives is what was sent.
VALUE = re.compile(r"(?:[!-~](?:[ -~]{0,1022}[!-~])?)?")
PLAIN = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")


def is_reserved(name: str) -> bool:
    lowered = name.lower()
    return lowered in RESERVED or lowered.startswith(RESERVED_PREFIXES)


def reserved_reason(headers: dict[str, str]) -> str | None:
    """What the grammar of names leaves open."""
    for name, value in headers.items():
        if is_reserved(name):
            return f"may not set {name}"
        if not VALUE.fullmatch(value):
            return f"has a value for {name} that is not printable ASCII"
    if len({name.lower() for name in headers}) < len(headers):
        return "has a name twice"
    return None


def sendable(headers: dict[str, str]) -> dict[str, str]:
    """Those that may go out. Others were refused at submit, but a row may have come another way."""
    return {
        name: value
        for name, value in headers.items()
        if NAME.fullmatch(name) and VALUE.fullmatch(value) and not is_reserved(name)
    }


def header_form(key: str) -> str:
    """An execution key as a header carries it: whatever is not printable ASCII as %XX, so that both
    ends sign the same bytes."""
    return quote(key, safe=PLAIN)
