"""A running duly for programs that use it inside of a framework."""

from tests.client.conftest import duly as duly
