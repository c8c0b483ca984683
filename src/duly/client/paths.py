"""Paths of the API. What comes from a caller is one segment of it, whatever is written there."""

from urllib.parse import quote


def path(*parts: str) -> str:
    """`/v1/a/b`: an id that a stranger gave, such as `x/cancel` or `x?y`, names nothing else."""
    return "/v1/" + "/".join(quote(part, safe="@") for part in parts)
