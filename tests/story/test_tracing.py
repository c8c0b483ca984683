"""Traces read back from a collector: a task from its caller to its second attempt."""

import json
from typing import Any

import pytest

from tests.processes import child, eventually
from tests.story.duly_up import RunningDuly
from tests.story.installation import Installation
from tests.story.otlp_receiver import ReceivedSpan, otlp_receiver

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


WORKFLOW = {
    "name": "order.fulfil",
    "nodes": {
        "reserve": {"type": "stock.reserve"},
        "charge": {"type": "card.charge", "retry": {"max_attempts": 2, "initial_s": 0.1}},
        "send": {"type": "parcel.send", "after": ["reserve", "charge"]},
    },
}


def work_off(duly: RunningDuly, key: str, failing: set[str], wanted: int) -> list[tuple[str, str]]:
    """Type and traceparent of each attempt; the first one of these types fails."""
    seen: list[tuple[str, str]] = []
    while len(seen) < wanted:
        lease = {"worker_id": "w", "pools": ["default"], "max": 10, "wait_s": 20}
        settlements = []
        for leased in call(duly, key, "/v1/worker/lease", lease)["tasks"]:
            seen.append((leased["type"], leased["traceparent"]))
            item = {"id": leased["id"], "fence": leased["fence"], "outcome": "completed"}
            if leased["type"] in failing:
                failing.discard(leased["type"])
                item |= {"outcome": "failed", "error": "no"}
            settlements.append(item)
        if settlements:
            body = {"worker_id": "w", "settlements": settlements}
            call(duly, key, "/v1/worker/settle", body)
    return seen


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_trace_of_a_workflow_leads_along_its_edges_and_retries(
    installation: Installation, protocol: str
) -> None:
    """Which step failed, was tried again and held up the others: in one picture."""
    key = installation.make_key()
    with otlp_receiver() as receiver:
        environ = installation.environ | {
            "DULY_OTLP_ENDPOINT": receiver.url if protocol == "http" else receiver.grpc_url,
            "DULY_OTLP_PROTOCOL": protocol,
            "DULY_TRACE_SAMPLE_RATIO": "0",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }
        arguments = ("-m", "duly", "serve", "--json", "--port", "0")
        with child(*arguments, environ=environ) as process:
            duly = RunningDuly(process)
            eventually(duly.is_ready, "it is ready")
            caller = f"00-{TRACE_ID}-{CALLER}-01"
            started = call(duly, key, "/v1/workflows", WORKFLOW, caller)
            seen = work_off(duly, key, {"card.charge"}, 4)
            eventually(lambda: len(receiver.spans) == 1 + 2 * 4, "all spans have come")
        spans = receiver.spans
    assert {span.trace_id for span in spans} == {TRACE_ID}
    (start,) = [span for span in spans if span.name == "start workflow"]
    assert start.parent_id == CALLER
    assert start.attributes["duly.workflow.id"] == started["id"]
    runs: dict[str, list[ReceivedSpan]] = {}
    for span in sorted(spans, key=lambda each: each.began_ns):
        if span.name.startswith("run "):
            runs.setdefault(span.name.removeprefix("run "), []).append(span)
    (reserve,), (failed, charge), (send,) = (
        runs[name] for name in ("stock.reserve", "card.charge", "parcel.send")
    )
    assert (failed.is_error, charge.is_error) == (True, False)
    assert charge.links == [failed.span_id], "a retry leads back to the attempt before"
    assert send.links == [reserve.span_id, charge.span_id], "a node leads back to its parents"
    assert {each.parent_id for each in (reserve, failed, charge, send)} == {start.span_id}
    told = {name: [parent for each, parent in seen if each == name] for name in runs}
    for name, each in runs.items():
        assert [f"00-{TRACE_ID}-{run.span_id}-01" for run in each] == told[name]


def test_a_replay_goes_on_with_the_trace_of_its_dead_letter(installation: Installation) -> None:
    """The trace that shows why it failed was cut off from the one that shows what came of it."""
    key = installation.make_key()
    with otlp_receiver() as receiver:
        environ = installation.environ | {
            "DULY_OTLP_ENDPOINT": receiver.url,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }
        arguments = ("-m", "duly", "serve", "--json", "--port", "0")
        with child(*arguments, environ=environ) as process:
            duly = RunningDuly(process)
            eventually(duly.is_ready, "it is ready")
            task = {"type": "mail.send", "retry": {"max_attempts": 1}}
            stored = call(duly, key, "/v1/tasks", task, f"00-{TRACE_ID}-{CALLER}-01")
            work_off(duly, key, {"mail.send"}, 1)
            call(duly, key, f"/v1/dead-letters/{stored['id']}/replay", None)
            work_off(duly, key, set(), 1)
            eventually(lambda: len(receiver.spans) == 1 + 2 * 2, "all spans have come")
        spans = receiver.spans
    assert {span.trace_id for span in spans} == {TRACE_ID}
    failed, completed = [span for span in spans if span.name == "run mail.send"]
    assert (failed.is_error, completed.is_error) == (True, False)
    assert failed.parent_id == completed.parent_id


def test_occurrences_of_a_schedule_are_traced_and_linked(installation: Installation) -> None:
    """What nobody called was never sampled: the slow nightly job had no trace."""
    key = installation.make_key()
    with otlp_receiver() as receiver:
        environ = installation.environ | {
            "DULY_OTLP_ENDPOINT": receiver.url,
            "DULY_TRACE_SAMPLE_RATIO": "1",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }
        arguments = ("-m", "duly", "serve", "--json", "--port", "0")
        with child(*arguments, environ=environ) as process:
            duly = RunningDuly(process)
            eventually(duly.is_ready, "it is ready")
            task = {"type": "report.make"}
            schedule = {"name": "often", "every_s": 1, "task": task}
            call(duly, key, "/v1/schedules", schedule)
            work_off(duly, key, set(), 2)

            def submits() -> list[ReceivedSpan]:
                return [span for span in receiver.spans if span.name == "submit report.make"]

            eventually(lambda: len(submits()) >= 2, "two occurrences have come")
            first, second = sorted(submits(), key=lambda each: each.began_ns)[:2]
            eventually(
                lambda: (
                    {"wait report.make", "run report.make"} <= receiver.of(first.trace_id).keys()
                ),
                "the first one has run",
            )
    assert first.trace_id != second.trace_id
    assert (first.links, second.links) == ([], [first.span_id])
