"""HTTP to duly with the standard library alone, for a program that starts, asks and ends: importing
an HTTP library would take it longer than all of its questions.

Calls are tried again as wire.py says. One thread at a time.
"""

import http.client
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from duly.client.errors import ApiError
from duly.client.request import check_key
from duly.client.server import Server
from duly.client.tracing import current_traceparent
from duly.client.wire import TIMEOUT_S, TRIES_MAX, Retrying, api_error, new_key, query_text

FAULTS = (http.client.HTTPException, OSError)


class PlainConnection:
    def __init__(
        self, server: Server, timeout_s: float = TIMEOUT_S, tries: int = TRIES_MAX
    ) -> None:
        self.server = server
        self.timeout_s = timeout_s
        self.tries = tries
        self.prefix = urlsplit(server.url).path
        self.opened: http.client.HTTPConnection | None = None

    def __enter__(self) -> "PlainConnection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self.opened is not None:
            self.opened.close()
            self.opened = None

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, object] | None = None,
        idempotency_key: str | None = None,
    ) -> Any:
        """JSON in and out, of a 2xx answer. A write carries a key, to be retried safely."""
        content = None if body is None else msgspec.json.encode(body)
        headers = {"Authorization": f"Bearer {self.server.api_key}"}
        if content is not None:
            headers["Content-Type"] = "application/json"
        if method != "GET":
            check_key(idempotency_key)
            headers["Idempotency-Key"] = idempotency_key or new_key()
            if traceparent := current_traceparent():
                headers["traceparent"] = traceparent
        answer = self.request(method, self.prefix + path + query_text(query), content, headers)
        return msgspec.json.decode(answer) if answer else None

    def request(
        self, method: str, target: str, content: bytes | None, headers: dict[str, str]
    ) -> bytes:
        retrying = Retrying(self.server.url, self.tries)
        while True:
            try:
                return self.send(method, target, content, headers)
            except ApiError as error:
                pause_s = retrying.pause_after(error)
            except FAULTS as error:
                self.close()
                pause_s = retrying.pause_after(error)
            sleep(pause_s)

    def send(
        self, method: str, target: str, content: bytes | None, headers: dict[str, str]
    ) -> bytes:
        if self.opened is None:
            self.opened = self.connect()
        try:
            self.opened.request(method, target, body=content, headers=headers)
            response = self.opened.getresponse()
            answer = response.read()
        except BaseException:
            # Ctrl-C included: half an answer must not be read as the next one's.
            self.close()
            raise
        if response.status < 300:
            return answer
        raise api_error(response.status, answer, response.headers.get("Retry-After"))

    def connect(self) -> http.client.HTTPConnection:
        address = urlsplit(self.server.url)
        if address.scheme == "https":
            return http.client.HTTPSConnection(
                address.hostname or "", address.port, timeout=self.timeout_s
            )
        return http.client.HTTPConnection(
            address.hostname or "", address.port, timeout=self.timeout_s
        )


def sleep(seconds: float) -> None:
    threading.Event().wait(seconds)
