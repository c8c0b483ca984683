"""duly in FastAPI: one client that lives as long as the application, and a dependency for it.

app = FastAPI(lifespan=duly_lifespan())

@app.post("/orders")
async def order(number: int, duly: DulyClient) -> str:
    return (await duly.submit(confirm.call(number))).id
"""

from typing import Annotated, TypeAlias

from fastapi import Depends
from fastapi.requests import HTTPConnection

from duly.client.asynchronous import AsyncClient
from duly.integrations.starlette import client_of, duly_lifespan

__all__ = ["DulyClient", "duly_client", "duly_lifespan"]


def duly_client(connection: HTTPConnection) -> AsyncClient:
    """The dependency behind `DulyClient`: what `app.dependency_overrides` replaces."""
    return client_of(connection)


DulyClient: TypeAlias = Annotated[AsyncClient, Depends(duly_client)]
