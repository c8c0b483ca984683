"""What is written about the Python client is what it is."""

import inspect

import duly
from tests.client_reference import INNER, REFERENCE, make_reference, members


def test_the_reference_is_what_the_code_says() -> None:
    """An option that is documented and gone, or there and not documented, is found by users."""
    assert REFERENCE.read_text("utf-8") == make_reference(), "run python -m tests.client_reference"


def test_both_clients_can_do_the_same() -> None:
    """The page describes one of them, and says that the other is the same."""
    for plain, awaited in (
        (duly.Client, duly.AsyncClient),
        (duly.Task, duly.AsyncTask),
        (duly.Workflow, duly.AsyncWorkflow),
    ):
        methods = {name: inspect.signature(member) for name, member in members(plain)}
        others = {name: inspect.signature(member) for name, member in members(awaited)}
        assert list(methods) == list(others)
        for name, signature in methods.items():
            assert list(signature.parameters.values()) == list(others[name].parameters.values())


def test_what_is_left_out_is_there() -> None:
    """A name that stays on the list after it was changed hides its successor."""
    for kind, names in INNER.items():
        assert names <= set(vars(kind)), kind.__name__
