"""The fixtures of the plugin, as a program that uses duly has them."""

from duly.testing.plugin import (
    arun_inline,
    duly_client,
    duly_clock,
    duly_inline,
    duly_server,
    duly_tenant,
    run_inline,
)

__all__ = [
    "arun_inline",
    "duly_client",
    "duly_clock",
    "duly_inline",
    "duly_server",
    "duly_tenant",
    "run_inline",
]
