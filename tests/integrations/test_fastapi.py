"""FastAPI and Starlette applications, served by uvicorn, that submit to a real duly."""

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from duly import Client, ConfigurationError
from duly.integrations.starlette import client_of
from tests.integrations.serving import served
from tests.story.duly_up import RunningDuly

TASKS = """
import contextlib
from duly import Context, TaskRegistry

tasks = TaskRegistry(pool="shop")

@tasks.task("order.confirm")
async def confirm(ctx: Context, number: int) -> str:
    return f"order {number}"

@contextlib.asynccontextmanager
async def own(app):
    print("opened", flush=True)
    yield {"shop": "corner"}
    # The application's own end comes while the client is still open.
    await confirm.asubmit(99)
"""
FASTAPI = """
from fastapi import FastAPI, Request, WebSocket
from duly.integrations.fastapi import DulyClient, duly_lifespan
from tasks import confirm, own

app = FastAPI(lifespan=duly_lifespan(own))

@app.post("/orders/{number}")
async def order(number: int, request: Request, duly: DulyClient) -> dict[str, object]:
    first = await duly.submit(confirm.call(number))
    second = await confirm.asubmit(number + 1)
    return {
        "tasks": [first.id, second.id],
        "shop": request.state.shop,
        "is_shared": second.client() is duly,
    }
"""
STARLETTE = """
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
from duly.integrations.starlette import client_of, duly_lifespan
from tasks import confirm, own

async def order(request):
    duly = client_of(request)
    number = int(request.path_params["number"])
    first = await duly.submit(confirm.call(number))
    second = await confirm.asubmit(number + 1)
    return JSONResponse({
        "tasks": [first.id, second.id],
        "shop": request.state.shop,
        "is_shared": second.client() is duly,
    })

routes = [Mount("/orders", routes=[Route("/{number}", order, methods=["POST"])])]
app = Starlette(routes=routes, lifespan=duly_lifespan(own))
"""


@pytest.mark.parametrize("source", [FASTAPI, STARLETTE], ids=["fastapi", "starlette"])
def test_an_application_submits_with_one_client_from_start_to_stop(
    source: str, duly: RunningDuly, tmp_path: Path
) -> None:
    """A client for each request opens a connection for each, and one that is never closed loses
    what was on its way when the application stopped."""
    (tmp_path / "tasks.py").write_text(TASKS)
    (tmp_path / "site_app.py").write_text(source)
    environ = {"DULY_URL": duly.url, "DULY_API_KEY": duly.ready["api_key"]}
    with (
        served(tmp_path, "site_app:app", environ) as site,
        Client(duly.url, duly.ready["api_key"]) as client,
    ):
        assert site.process.line() == "opened"
        last_before = newest(client)
        status, answer = site.call("POST", "/orders/7")
        assert status == 200
        assert answer["shop"] == "corner"
        assert answer["is_shared"] is True
        payloads = [client.get(each).payload for each in answer["tasks"]]
        assert payloads == [{"number": 7}, {"number": 8}]
        site.process.signal(signal.SIGTERM)
        site.process.wait()
        assert "Application shutdown complete" in site.process.said_on_errors
        assert "Traceback" not in site.process.said_on_errors
        # Stored by the inner lifespan's end.
        assert newest(client) != last_before
        assert client.get(newest(client)).payload == {"number": 99}


def newest(client: Client) -> str:
    return next((task.id for task in client.tasks(order="created")), "")


def test_an_application_without_the_lifespan_says_what_is_missing() -> None:
    """An AttributeError about a state says nothing of what to do."""
    connection: Any = SimpleNamespace(state=SimpleNamespace())
    with pytest.raises(ConfigurationError, match="lifespan=duly_lifespan"):
        client_of(connection)
