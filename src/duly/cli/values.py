"""Parsers of command line values: durations, instants, JSON, tags, bounds. An invalid value is a
usage error, before any request is sent."""

import re
import sys
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

import click
import msgspec

UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)([smhd]?)", re.ASCII)
NUMBER = re.compile(r"\d{1,15}(?:\.\d{1,6})?", re.ASCII)
DOCUMENT_BYTES_MAX = 1024 * 1024
# Said on purpose, unlike an option that was not given.
NO_BOUND = "none"


def duration(text: str) -> float:
    """Seconds."""
    match = DURATION.fullmatch(text)
    if match is None:
        raise click.BadParameter(f"{text!r} is not a duration such as 90, 90s, 5m, 2h or 1d")
    return float(match[1]) * UNITS_S[match[2]]


def whole_seconds(text: str) -> int:
    seconds = duration(text)
    if seconds != int(seconds):
        raise click.BadParameter(f"{text!r} is not of whole seconds")
    return int(seconds)


def instant(text: str) -> str:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not an instant such as 2026-12-24T18:00:00Z"
        ) from None
    if found.tzinfo is None:
        raise click.BadParameter(f"{text!r} has no offset: end it with Z, or with +01:00")
    return found.isoformat()


def json_document(text: str) -> msgspec.Raw:
    """Kept as it was written: a number with many digits stays what it is."""
    document = read_named(text) if text == "-" or text.startswith("@") else encoded(text)
    try:
        msgspec.json.decode(document)
    except (msgspec.DecodeError, RecursionError) as error:
        raise click.BadParameter(f"is not JSON: {error}") from None
    return msgspec.Raw(document)


def workflow_document(text: str) -> object:
    """A workflow type by its name, with a version or without one; or JSON."""
    if text.startswith(("{", "@", "-")):
        return json_document(text)
    return {"type": text}


def encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise click.BadParameter("is not UTF-8") from None


def read_named(name: str) -> bytes:
    """The file of `@file`, or standard input for `-`."""
    if name == "-":
        return read_bounded(sys.stdin.buffer)
    try:
        with Path(name[1:]).open("rb") as file:
            return read_bounded(file)
    except OSError as error:
        raise click.BadParameter(f"cannot read {name[1:]}: {error.strerror}") from None


def read_bounded(file: BinaryIO) -> bytes:
    document = file.read(DOCUMENT_BYTES_MAX + 1)
    if len(document) > DOCUMENT_BYTES_MAX:
        raise click.BadParameter(f"has more than {DOCUMENT_BYTES_MAX} bytes")
    return document


def pair(text: str) -> tuple[str, str]:
    """`name:value`, as tags and headers are written."""
    name, colon, value = text.partition(":")
    if not name or not colon:
        raise click.BadParameter(f"{text!r} is not of the form name:value")
    return name, value.strip()


def bound(text: str) -> float | int | str:
    """A number, or `none` for no bound."""
    if text == NO_BOUND:
        return NO_BOUND
    if not NUMBER.fullmatch(text):
        raise click.BadParameter(f"{text!r} is not a number, nor {NO_BOUND}")
    return float(text) if "." in text else int(text)


def server_url(text: str) -> str:
    if not re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#]*)?", text):
        raise click.BadParameter(f"{text!r} is not an address such as http://127.0.0.1:8080")
    return text


def secret(text: str) -> str:
    """Also `@file`: what stands on a command line is seen by every user of the machine."""
    if not text.startswith("@"):
        return text
    try:
        return read_named(text).decode().strip()
    except UnicodeDecodeError:
        raise click.BadParameter(f"{text[1:]} is not text") from None
