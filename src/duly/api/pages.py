"""The dashboard's files over HTTP: one page and its modules, from the package `duly.web`.

They are read once, compressed once, and named by their content to caches. Nothing here knows what a
page shows; it talks to the public API like every other client.
"""

import gzip
import hashlib
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files

from duly.api.asgi import Endpoint, Kind
from duly.api.request import Answer, Call

TAG = "Dashboard"
INDEX = "index.html"
MEDIA_TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}


@dataclass(frozen=True)
class Asset:
    """One file, as it is sent."""

    name: str
    content: bytes

    @property
    def media_type(self) -> bytes:
        return MEDIA_TYPES[self.name[self.name.rindex(".") :]]

    @cached_property
    def compressed(self) -> bytes:
        return gzip.compress(self.content, mtime=0)

    @cached_property
    def etag(self) -> str:
        return f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'

    async def answer(self, call: Call) -> Answer:
        headers = {**HEADERS, "etag": self.etag, "vary": "accept-encoding"}
        if self.etag in (call.header(b"if-none-match") or ""):
            return Answer(304, b"", headers, self.media_type)
        if "gzip" in (call.header(b"accept-encoding") or ""):
            headers["content-encoding"] = "gzip"
            return Answer(200, self.compressed, headers, self.media_type)
        return Answer(200, self.content, headers, self.media_type)


class PageRoutes:
    def __init__(self) -> None:
        self.assets = read_assets()

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="GET",
                path="/" if asset.name == INDEX else f"/web/{asset.name}",
                summary="The dashboard",
                handler=asset.answer,
                kind=Kind.OPEN,
                tag=TAG,
            )
            for asset in self.assets
        ]


def read_assets() -> list[Asset]:
    """Every file of the dashboard, by name; the package has no others."""
    found = [
        Asset(file.name, file.read_bytes())
        for file in files("duly.web").iterdir()
        if file.is_file() and "." + file.name.rpartition(".")[2] in MEDIA_TYPES
    ]
    return sorted(found, key=lambda asset: asset.name)
