"""HTTP to duly: connections are reused, and what failed is tried again as wire.py says."""

import asyncio
from collections.abc import AsyncGenerator, Mapping

from duly.client.errors import ApiError
from duly.client.http_pool import HttpFault, HttpPool
from duly.client.request import check_key
from duly.client.server import Current, Server
from duly.client.tracing import current_traceparent
from duly.client.wire import TIMEOUT_S, TRIES_MAX, Retrying, api_error, new_key, query_text

FAULTS = (HttpFault, TimeoutError, OSError)


class Connection:
    def __init__(
        self, server: Server, timeout_s: float = TIMEOUT_S, tries: int = TRIES_MAX
    ) -> None:
        self.server = server
        self.timeout_s = timeout_s
        self.tries = tries
        self.opened: HttpPool | None = None
        self.closer: AsyncGenerator[None, None] | None = None

    async def pool(self) -> HttpPool:
        """Made at its first use, inside the loop that uses it."""
        if self.opened is None:
            authorization = {"Authorization": f"Bearer {self.server.api_key}"}
            self.opened = HttpPool(self.server.url, authorization)
            self.closer = closing(self.opened)
            await anext(self.closer)
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
        tries: int | None = None,
    ) -> bytes:
        """The body of a 2xx answer. A write without a key is given one, to be retried safely."""
        if Current.inline is not None:
            return Current.inline.answer(method, path)
        headers = {}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if method != "GET":
            check_key(idempotency_key)
            headers["Idempotency-Key"] = idempotency_key or new_key()
            if traceparent := current_traceparent():
                headers["traceparent"] = traceparent
        target = path + query_text(query)
        retrying = Retrying(self.server.url, tries or self.tries)
        while True:
            try:
                return await self.send(method, target, body, headers, wait_s)
            except (ApiError, *FAULTS) as error:
                pause_s = retrying.pause_after(error)
            await asyncio.sleep(pause_s)

    async def send(
        self, method: str, target: str, body: bytes | None, headers: dict[str, str], wait_s: float
    ) -> bytes:
        answer = await (await self.pool()).request(
            method, target, body, headers, self.timeout_s + wait_s
        )
        if answer.status < 300:
            return answer.content
        raise api_error(answer.status, answer.content, answer.headers.get("retry-after"))

    async def close(self) -> None:
        closer, self.closer, self.opened = self.closer, None, None
        if closer is not None:
            await closer.aclose()


async def closing(pool: HttpPool) -> AsyncGenerator[None, None]:
    """An event loop closes its asynchronous generators at its end, as `asyncio.run` does, and when
    they are collected; so a client that its program forgot leaves no open session behind."""
    try:
        yield
    finally:
        await pool.close()
