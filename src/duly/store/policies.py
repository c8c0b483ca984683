"""Stored form of a policy: only what departs from the defaults, or nothing at all.

The defaults of `domain/task.py` are thereby part of the stored format: changing one needs a
migration that writes the old value into the rows that relied on it.
"""

from dataclasses import asdict, fields

import msgspec

from duly.domain.retry import RetryPolicy
from duly.domain.task import DEFAULT_POLICY, Callback, Policy

DECODER = msgspec.json.Decoder(Policy)
CALLBACK_DECODER = msgspec.json.Decoder(Callback)


def encode_policy(policy: Policy) -> str | None:
    if policy is DEFAULT_POLICY:
        return None
    departures = {
        field.name: value
        for field in fields(Policy)
        if (value := getattr(policy, field.name)) != getattr(DEFAULT_POLICY, field.name)
    }
    if "retry" in departures:
        departures["retry"] = encode_retry(policy.retry)
    return msgspec.json.encode(departures).decode() if departures else None


def encode_retry(retry: RetryPolicy) -> dict[str, object]:
    """Whole, but for what came later: rows without it are the same as before it came."""
    written = asdict(retry)
    if not retry.retry_4xx:
        del written["retry_4xx"]
    return written


def decode_policy(text: str | None) -> Policy:
    return DEFAULT_POLICY if text is None else DECODER.decode(text)


def encode_callback(callback: Callback) -> str:
    """Of a workflow, which has no policy."""
    return msgspec.json.encode(callback).decode()


def decode_callback(text: str) -> Callback:
    return CALLBACK_DECODER.decode(text)
