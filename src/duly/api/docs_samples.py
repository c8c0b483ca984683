"""Samples of calls for the API page: the same call with curl and with the Python client."""

import json
import pprint
import re
from typing import Any

from duly.api.openapi import Json

PARAMETER = re.compile(r"{(\w+)}")
STREAMS = "text/event-stream"
LINE_MAX = 76


def curl_sample(method: str, path: str, operation: Json) -> str:
    """With `$ID` for what the path leaves open."""
    address = PARAMETER.sub(lambda found: "$" + found[1].upper(), path)
    verb = "" if method == "GET" else f"-X {method} "
    stream = "-N " if STREAMS in media_types(operation) else ""
    lines = [f'curl {stream}{verb}"$DULY_URL{address}"']
    if "security" in operation:
        lines.append('-H "Authorization: Bearer $DULY_API_KEY"')
    body = example_of(operation)
    if body is not None:
        lines.append("-H 'Content-Type: application/json'")
        lines.append(f"-d '{quoted(json.dumps(body, indent=2))}'")
    return " \\\n  ".join(lines)


def python_sample(method: str, path: str, operation: Json) -> str | None:
    """None for what the client does not read: pages, streams, sign-in of browsers."""
    if "security" not in operation or STREAMS in media_types(operation):
        return None
    names = PARAMETER.findall(path)
    address = f'f"{path}"' if names else f'"{path}"'
    before = [f'{name} = "..."' for name in names]
    arguments = [f'"{method}"', address]
    body = example_of(operation)
    if body is not None:
        # The client sends a key of its own with each call, unless it is given one.
        key = body.get("idempotency_key")
        rest = {name: value for name, value in body.items() if name != "idempotency_key"}
        before.append(f"body = {python_text(rest)}")
        arguments.append("body" if key is None else f'body, idempotency_key="{key}"')
    lines = ["from duly import Client", "", *before, *([""] if before else [])]
    lines += ["with Client() as client:", f"    print(client.call({', '.join(arguments)}))"]
    return "\n".join(lines)


def python_text(value: Any) -> str:
    return pprint.pformat(value, width=LINE_MAX, sort_dicts=False).replace("'", '"')


def example_of(operation: Json) -> Any:
    content = operation.get("requestBody", {}).get("content", {})
    return content.get("application/json", {}).get("example")


def media_types(operation: Json) -> set[str]:
    return {
        name for answer in operation["responses"].values() for name in answer.get("content", {})
    }


def quoted(text: str) -> str:
    """Inside single quotes of a shell."""
    return text.replace("'", "'\\''")
