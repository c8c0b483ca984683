"""Traces read back from a collector: a task from its caller to its second attempt."""

import json
from typing import Any

import pytest

from tests.processes import child, eventually
from tests.story.duly_up import RunningDuly
from tests.story.installation import Installation
from tests.story.otlp_receiver import otlp_receiver

pytestmark = pytest.mark.slow

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"


def call(duly: RunningDuly, key: str, path: str, body: Any, traceparent: str = "") -> Any:
    import urllib.request

    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    if traceparent:
        headers["traceparent"] = traceparent
    request = urllib.request.Request(duly.url + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read() or b"null")


def test_a_trace_leads_from_the_caller_to_every_attempt(installation: Installation) -> None:
    """Without the caller's context each attempt was a trace of its own that nobody could find."""
    key = installation.make_key()
    with otlp_receiver() as receiver:
        environ = installation.environ | {
            "DULY_OTLP_ENDPOINT": receiver.url,
            "DULY_TRACE_SAMPLE_RATIO": "0",
            # Of the exporter: at once instead of every 5 s.
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }
        arguments = ("-m", "duly", "serve", "--json", "--port", "0")
        with child(*arguments, environ=environ) as process:
            duly = RunningDuly(process)
            eventually(duly.is_ready, "it is ready")
            task: dict[str, Any] = {
                "type": "mail.send",
                "payload": 1,
                "retry": {"max_attempts": 2, "initial_s": 0.1},
            }
            call(duly, key, "/v1/tasks", task)
            call(duly, key, "/v1/tasks", task, f"00-{TRACE_ID}-{CALLER}-00")
            stored = call(duly, key, "/v1/tasks", task, f"00-{TRACE_ID}-{CALLER}-01")
            seen: list[str] = []

            def run(outcome: str) -> None:
                lease = {"worker_id": "w", "pools": ["default"], "max": 10, "wait_s": 20}
                for leased in call(duly, key, "/v1/worker/lease", lease)["tasks"]:
                    mine = leased["id"] == stored["id"]
                    settled = {
                        "id": leased["id"],
                        "fence": leased["fence"],
                        "outcome": outcome if mine else "completed",
                        "error": "no" if mine and outcome == "failed" else None,
                    }
                    if mine:
                        seen.append(leased["traceparent"])
                    body = {"worker_id": "w", "settlements": [settled]}
                    call(duly, key, "/v1/worker/settle", body)

            while len(seen) < 1:
                run("failed")
            while len(seen) < 2:
                run("completed")
            names = ["submit mail.send"] + ["run mail.send", "wait mail.send"] * 2
            eventually(
                lambda: sorted(span.name for span in receiver.spans) == sorted(names),
                "all spans have come",
            )
    spans = receiver.spans
    assert {span.trace_id for span in spans} == {TRACE_ID}, "what was not sampled is not exported"
    submit = receiver.of(TRACE_ID)["submit mail.send"]
    assert submit.parent_id == CALLER
    runs = sorted((s for s in spans if s.name == "run mail.send"), key=lambda s: s.began_ns)
    assert {run.parent_id for run in runs} == {submit.span_id}
    assert [f"00-{TRACE_ID}-{run.span_id}-01" for run in runs] == seen, "what the worker was told"
    assert [run.attributes["duly.outcome"] for run in runs] == ["failed", "completed"]
    assert [run.is_error for run in runs] == [True, False]
    assert runs[1].links == [runs[0].span_id], "a retry leads back to the attempt before"
    assert runs[0].attributes["duly.task.id"] == stored["id"]
    assert all(span.ended_ns >= span.began_ns for span in spans)
