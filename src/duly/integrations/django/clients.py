"""The client of a Django program: one for all of its threads, also behind typed handles."""

from duly.client.shared_clients import shared_client
from duly.client.synchronous import Client


def get_client() -> Client:
    """Of the duly that the settings name; closed with the program."""
    return shared_client(None, None)
