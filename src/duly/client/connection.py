"""HTTP to duly: connections are reused, and what failed is tried again where that is safe.

| event | what happens |
|---|---|
| connection refused, reset, timed out | tried again: a write carries the same idempotency key |
| 429, 503 | tried again after what the server asked for, or a growing pause |
| 4xx | raised at once, with the problem details |
| all tries used up | the last error is raised; the outcome of a write is then unknown |
"""

import asyncio
from collections.abc import Mapping

import aiohttp

from duly.client.errors import RateLimited, Unavailable, Unreachable
from duly.client.server import Server
from duly.client.wire import (
    PAUSE_FIRST_S,
    PAUSE_MAX_S,
    RETRY_AFTER_MAX_S,
    TIMEOUT_S,
    TRIES_MAX,
    api_error,
    jittered,
    new_key,
    query_text,
)

CONNECTIONS_MAX = 100
FAULTS = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError, OSError)


class Connection:
    def __init__(
        self, server: Server, timeout_s: float = TIMEOUT_S, tries: int = TRIES_MAX
    ) -> None:
        self.server = server
        self.timeout_s = timeout_s
        self.tries = tries
        self.opened: aiohttp.ClientSession | None = None

    def session(self) -> aiohttp.ClientSession:
        """Made at its first use, inside the loop that uses it."""
        if self.opened is None:
            self.opened = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX),
                timeout=aiohttp.ClientTimeout(total=self.timeout_s),
                headers={"Authorization": f"Bearer {self.server.api_key}"},
                auto_decompress=False,
            )
        return self.opened

    async def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        query: Mapping[str, object] | None = None,
        idempotency_key: str | None = None,
        wait_s: float = 0.0,
    ) -> bytes:
        """The body of a 2xx answer. A write without a key is given one, to be retried safely."""
        headers = {}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if method != "GET":
            headers["Idempotency-Key"] = idempotency_key or new_key()
        target = self.server.url + path + query_text(query)
        pause_s = PAUSE_FIRST_S
        for tries_left in reversed(range(self.tries)):
            try:
                return await self.send(method, target, body, headers, wait_s)
            except (RateLimited, Unavailable) as error:
                if not tries_left or (error.retry_after_s or 0) > RETRY_AFTER_MAX_S:
                    raise
                await asyncio.sleep(max(error.retry_after_s or 0.0, jittered(pause_s)))
            except FAULTS as error:
                if not tries_left:
                    problem = str(error) or type(error).__name__
                    raise Unreachable(url=self.server.url, problem=problem) from error
                await asyncio.sleep(jittered(pause_s))
            pause_s = min(pause_s * 2, PAUSE_MAX_S)
        raise AssertionError("the last try returns or raises")

    async def send(
        self, method: str, target: str, body: bytes | None, headers: dict[str, str], wait_s: float
    ) -> bytes:
        limit = aiohttp.ClientTimeout(total=self.timeout_s + wait_s)
        async with self.session().request(
            method, target, data=body, headers=headers, timeout=limit, allow_redirects=False
        ) as response:
            content = await response.read()
            if response.status < 300:
                return content
            raise api_error(response.status, content, response.headers.get("Retry-After"))

    async def close(self) -> None:
        if self.opened is not None:
            await self.opened.close()
            self.opened = None
