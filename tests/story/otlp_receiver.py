"""A collector of spans as a process of its own: OTLP over HTTP and gRPC, and what it was sent, read
back from its file. `python -m tests.story.otlp_receiver FILE` prints its two ports."""

import gzip
import json
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as service
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.processes import child


class ReceivedSpan(NamedTuple):
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    began_ns: int
    ended_ns: int
    attributes: dict[str, Any]
    links: list[str]
    is_error: bool


class OtlpReceiver:
    """The process, as a test sees it."""

    def __init__(self, http_port: int, grpc_port: int, path: Path) -> None:
        self.url = f"http://127.0.0.1:{http_port}"
        self.grpc_url = f"http://127.0.0.1:{grpc_port}"
        self.path = path
        # All of them, once the process has ended.
        self.kept: list[ReceivedSpan] | None = None

    @property
    def spans(self) -> list[ReceivedSpan]:
        """All whose line is written; a line is written at once."""
        if self.kept is not None:
            return self.kept
        lines = self.path.read_text().splitlines(keepends=True)
        return [ReceivedSpan(*json.loads(line)) for line in lines if line.endswith("\n")]

    def of(self, trace_id: str) -> dict[str, ReceivedSpan]:
        return {span.name: span for span in self.spans if span.trace_id == trace_id}


def received(span: Any) -> ReceivedSpan:
    return ReceivedSpan(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.kind,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        {
            each.key: getattr(each.value, str(each.value.WhichOneof("value")))
            for each in span.attributes
        },
        [link.span_id.hex() for link in span.links],
        span.status.code == 2,
    )


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spans"
        path.touch()
        with child("-m", "tests.story.otlp_receiver", str(path)) as process:
            http_port, grpc_port = process.line().split()
            receiver = OtlpReceiver(int(http_port), int(grpc_port), path)
            try:
                yield receiver
            finally:
                receiver.kept = receiver.spans


def write(path: Path, request: ExportTraceServiceRequest) -> ExportTraceServiceResponse:
    lines = [
        json.dumps(received(span)) + "\n"
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    with path.open("a") as file:
        file.write("".join(lines))
    return ExportTraceServiceResponse()


def serve(path: Path) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            if self.path == "/v1/traces":
                write(path, ExportTraceServiceRequest.FromString(body))
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Quiet."""

    class Servicer(service.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
            return write(path, request)

    over_grpc = grpc.server(ThreadPoolExecutor(max_workers=2))
    service.add_TraceServiceServicer_to_server(Servicer(), over_grpc)  # type: ignore[no-untyped-call]
    grpc_port = over_grpc.add_insecure_port("127.0.0.1:0")
    over_grpc.start()
    over_http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(over_http.server_port, grpc_port, flush=True)
    over_http.serve_forever()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
