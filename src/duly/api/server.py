"""The HTTP server: the listening socket, uvicorn inside our own loop, and its orderly stop."""

import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.applications import Starlette
from starlette.routing import BaseRoute

from duly.domain.errors import PortInUse

BACKLOG_MAX = 2048
KEEP_ALIVE_S = 75


class Listener:
    """Our own socket, so that a taken port is known before anything else starts."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self.socket.bind((host, port))
            self.socket.listen(BACKLOG_MAX)
        except OSError as error:
            self.socket.close()
            raise PortInUse(host=host, port=port, problem=error.strerror) from None
        self.port: int = self.socket.getsockname()[1]

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def close(self) -> None:
        self.socket.close()


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers: the process has one owner of signals, `app.py`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_server(routes: list[BaseRoute], stop_timeout_s: float) -> HttpServer:
    config = uvicorn.Config(
        Starlette(routes=routes),
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, int(stop_timeout_s)),
    )
    return HttpServer(config)
