"""HTTP/1.1 over asyncio's streams, with connections that are kept: what the client needs of it.

An HTTP library would make an installation of the client six times as large, and its import four
times as slow (docs/dependencies.md). Redirects are answers, bodies are never compressed, nothing
is tried again here: that is for `http_async.py`.

| event | what happens |
|---|---|
| the server closed a kept connection | seen before it is used again: another one is taken |
| it closes one after a request was sent | `HttpFault`: the outcome is unknown |
| the caller is cancelled, or its time is up | the connection is closed: half an answer is on it |
| all connections are in use | the caller waits, within its own time |
| an answer is larger than `ANSWER_BYTES_MAX` | `HttpFault` |
"""

import asyncio
import contextlib
import ssl
from typing import NamedTuple
from urllib.parse import quote, urlsplit

CONNECTIONS_MAX = 100
# Sooner than the server (75 s) and most proxies (60 s) let go of a silent connection.
IDLE_S_MAX = 15.0
HEAD_BYTES_MAX = 64 * 1024
# A page of 200 tasks with the largest payloads and results, and room to spare.
ANSWER_BYTES_MAX = 128 * 1024 * 1024
CLOSE_S = 1.0
BODILESS = (204, 304)


class HttpFault(Exception):
    """What came back was no HTTP, or not all of an answer."""


class Answer(NamedTuple):
    status: int
    # By their names in lower case.
    headers: dict[str, str]
    content: bytes


class Kept(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    since: float

    def is_usable(self, now: float) -> bool:
        is_open = not (self.reader.at_eof() or self.writer.is_closing())
        return is_open and now - self.since < IDLE_S_MAX


class HttpPool:
    """Belongs to the event loop that first uses it."""

    def __init__(
        self, url: str, headers: dict[str, str], connections_max: int = CONNECTIONS_MAX
    ) -> None:
        address = urlsplit(url)
        self.host = address.hostname or ""
        self.is_secure = address.scheme == "https"
        self.port = address.port or (443 if self.is_secure else 80)
        self.prefix = address.path
        self.head = head_lines({"Host": address.netloc.rpartition("@")[2], **headers})
        self.room = asyncio.Semaphore(connections_max)
        self.kept: list[Kept] = []
        self.context: ssl.SSLContext | None = None

    async def request(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], timeout_s: float
    ) -> Answer:
        """`TimeoutError` when the answer is not there in time; it may then have been done."""
        target = quote(self.prefix + path, safe="!$%&'()*+,/:;=?@[]~")
        length = "" if body is None else f"Content-Length: {len(body)}\r\n"
        head = f"{method} {target} HTTP/1.1\r\n{self.head}{head_lines(headers)}{length}\r\n"
        request = head.encode("latin-1") + (body or b"")
        async with asyncio.timeout(timeout_s), self.room:
            reader, writer = self.take() or await self.connect()
            is_reusable = False
            try:
                writer.write(request)
                if len(request) > HEAD_BYTES_MAX:
                    await writer.drain()
                answer, is_reusable = await read_answer(reader)
            except (EOFError, asyncio.LimitOverrunError) as error:
                raise HttpFault("the server closed the connection before it answered") from error
            finally:
                if is_reusable:
                    now = asyncio.get_running_loop().time()
                    self.kept.append(Kept(reader, writer, now))
                else:
                    writer.transport.abort()
        return answer

    def take(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """The one that was used last, so that the others grow old and are closed."""
        now = asyncio.get_running_loop().time()
        while self.kept and not self.kept[0].is_usable(now):
            oldest = self.kept.pop(0)
            oldest.writer.transport.abort()
        while self.kept:
            latest = self.kept.pop()
            if latest.is_usable(now):
                return latest.reader, latest.writer
            latest.writer.transport.abort()
        return None

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.is_secure and self.context is None:
            self.context = ssl.create_default_context()
        return await asyncio.open_connection(
            self.host, self.port, ssl=self.context, limit=HEAD_BYTES_MAX
        )

    async def close(self) -> None:
        kept, self.kept = self.kept, []
        for each in kept:
            each.writer.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                for each in kept:
                    with contextlib.suppress(OSError):
                        await each.writer.wait_closed()


def head_lines(headers: dict[str, str]) -> str:
    for name, value in headers.items():
        if not value.isascii() or not value.isprintable():
            raise ValueError(f"the header {name} has characters that no header may have")
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())


async def read_answer(reader: asyncio.StreamReader) -> tuple[Answer, bool]:
    """Also whether the connection can be used again."""
    status, version, headers = await read_head(reader)
    while 100 <= status < 200:
        status, version, headers = await read_head(reader)
    connection = headers.get("connection", "").lower()
    is_reusable = version == "HTTP/1.1" and "close" not in connection
    if status in BODILESS:
        content = b""
    elif headers.get("transfer-encoding", "").lower() == "chunked":
        content = await read_chunks(reader)
    elif "content-length" in headers:
        content = await reader.readexactly(bounded(headers["content-length"], 10))
    else:
        is_reusable = False
        content = await read_to_end(reader)
    return Answer(status, headers, content), is_reusable


async def read_head(reader: asyncio.StreamReader) -> tuple[int, str, dict[str, str]]:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head[:-4].decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    status, _, _ = rest.partition(" ")
    if not version.startswith("HTTP/1.") or not (len(status) == 3 and status.isdecimal()):
        raise HttpFault("what the server answered is no HTTP")
    headers: dict[str, str] = {}
    for line in lines:
        name, separator, value = line.partition(":")
        if not separator:
            raise HttpFault("what the server answered is no HTTP")
        headers[name.lower()] = value.strip()
    return int(status), version, headers


async def read_chunks(reader: asyncio.StreamReader) -> bytes:
    content = bytearray()
    while True:
        line = await reader.readuntil(b"\r\n")
        size = bounded(line.partition(b";")[0].strip().decode("latin-1"), 16)
        if not size:
            break
        check_size(len(content) + size)
        content += await reader.readexactly(size)
        if await reader.readexactly(2) != b"\r\n":
            raise HttpFault("what the server answered is no HTTP")
    # Trailers, which nothing here reads, up to the empty line.
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass
    return bytes(content)


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    content = bytearray()
    while chunk := await reader.read(HEAD_BYTES_MAX):
        content += chunk
        check_size(len(content))
    return bytes(content)


def bounded(text: str, base: int) -> int:
    """A number of bytes that we are ready to hold."""
    try:
        size = int(text, base)
    except ValueError:
        raise HttpFault("what the server answered is no HTTP") from None
    check_size(size)
    return size


def check_size(size: int) -> None:
    if not 0 <= size <= ANSWER_BYTES_MAX:
        raise HttpFault(f"the answer is larger than {ANSWER_BYTES_MAX} bytes")
