"""The HTTP server: the listening socket, TLS, uvicorn inside our own loop, and its orderly stop."""

import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from duly.api.asgi import AsgiApplication
from duly.api.http_limits import HttpLimits, bounded_protocol
from duly.domain.errors import ConfigurationError, PortInUse

BACKLOG_MAX = 2048
DEFAULT_LIMITS = HttpLimits()


class Listener:
    """Our own socket, so that a taken port is known before anything else starts."""

    def __init__(self, host: str, port: int, *, is_secure: bool = False) -> None:
        self.host = host
        self.scheme = "https" if is_secure else "http"
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
        return f"{self.scheme}://{host}:{self.port}"

    def close(self) -> None:
        self.socket.close()


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers: the process has one owner of signals, `app.py`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_server(
    application: AsgiApplication,
    stop_timeout_s: float,
    limits: HttpLimits = DEFAULT_LIMITS,
    tls: ssl.SSLContext | None = None,
) -> HttpServer:
    config = uvicorn.Config(
        application,
        http=bounded_protocol(limits),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=max(1, int(limits.keep_alive_s)),
        timeout_graceful_shutdown=max(1, int(stop_timeout_s)),
    )
    config.load()
    # Ours, because it is checked before anything starts.
    config.ssl = tls
    return HttpServer(config)


def read_tls(certificate_file: str, key_file: str) -> ssl.SSLContext | None:
    """Both files or none; what is wrong with them is said before the server starts."""
    if not certificate_file and not key_file:
        return None
    if not (certificate_file and key_file):
        given, missing = ("tls_certificate_file", "tls_key_file")
        if not certificate_file:
            given, missing = missing, given
        raise ConfigurationError(problem=f"{given} is set and {missing} is not; TLS needs both")
    for name, path in (("tls_certificate_file", certificate_file), ("tls_key_file", key_file)):
        try:
            Path(path).read_bytes()
        except OSError as error:
            problem = f"{name}: cannot read {path}: {error.strerror}"
            raise ConfigurationError(problem=problem) from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        # An empty password, or OpenSSL would ask for one on the terminal.
        context.load_cert_chain(certificate_file, key_file, password="")
    except (ssl.SSLError, ValueError) as error:
        raise ConfigurationError(problem=tls_problem(error, certificate_file, key_file)) from None
    return context


def tls_problem(error: Exception, certificate_file: str, key_file: str) -> str:
    if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
        return f"the key in {key_file} does not belong to the certificate in {certificate_file}"
    return (
        f"{certificate_file} and {key_file} are not a certificate and its key in PEM form "
        "without a password"
    )
