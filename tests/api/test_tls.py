"""HTTPS from two files: what they must be, and that the server speaks it."""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest
from cryptography.hazmat.primitives import serialization

from duly.api.http_limits import HttpLimits
from duly.api.server import read_tls
from duly.domain.errors import ConfigurationError
from tests.api.certificates import Pair
from tests.api.sockets import Echo, listening


async def test_with_a_certificate_the_door_speaks_https(tmp_path: Path) -> None:
    """A key sent in the clear belongs to whoever listens."""
    pair = Pair(tmp_path)
    trust = ssl.create_default_context(cafile=str(pair.certificate))
    async with (
        listening(Echo().door(), tls=pair.context()) as (_, listener),
        aiohttp.ClientSession() as client,
    ):
        assert listener.url == f"https://127.0.0.1:{listener.port}"
        async with client.post(listener.url + "/echo", data=b"hi", ssl=trust) as response:
            assert (await response.json())["body"] == "hi"
        with pytest.raises(aiohttp.ClientError):
            await client.post(f"http://127.0.0.1:{listener.port}/echo", data=b"hi")


def test_an_old_version_of_tls_is_not_spoken(tmp_path: Path) -> None:
    """What was broken long ago is still offered by old clients, and taken by default elsewhere."""
    assert Pair(tmp_path).context().minimum_version >= ssl.TLSVersion.TLSv1_2


async def test_limits_hold_over_tls_too(tmp_path: Path) -> None:
    """A half-closed connection is not a thing there; the refusal must still arrive."""
    pair = Pair(tmp_path)
    trust = ssl.create_default_context(cafile=str(pair.certificate))
    limits = HttpLimits(headers_s=0.2, linger_s=0.1)
    async with listening(Echo().door(), limits, pair.context()) as (_, listener):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, ssl=trust)
        writer.write(b"POST /ec")
        async with asyncio.timeout(5):
            said = await reader.read()
        assert said.startswith(b"HTTP/1.1 408 ")
        writer.close()


def test_no_files_are_no_tls() -> None:
    """Behind a proxy that ends TLS there is nothing to configure."""
    assert read_tls("", "") is None


def only_a_certificate(folder: Path) -> tuple[str, str]:
    return str(Pair(folder).certificate), ""


def only_a_key(folder: Path) -> tuple[str, str]:
    return "", str(Pair(folder).key)


def missing_file(folder: Path) -> tuple[str, str]:
    return str(Pair(folder).certificate), str(folder / "nothing.key")


def a_folder(folder: Path) -> tuple[str, str]:
    return str(folder), str(Pair(folder).key)


def keys_of_two_pairs(folder: Path) -> tuple[str, str]:
    return str(Pair(folder, "one").certificate), str(Pair(folder, "two").key)


def other_text(folder: Path) -> tuple[str, str]:
    pair = Pair(folder)
    pair.certificate.write_text("not a certificate")
    return str(pair.certificate), str(pair.key)


def key_with_password(folder: Path) -> tuple[str, str]:
    pair = Pair(folder, encryption=serialization.BestAvailableEncryption(b"secret"))
    return str(pair.certificate), str(pair.key)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (only_a_certificate, "tls_certificate_file is set and tls_key_file is not"),
        (only_a_key, "tls_key_file is set and tls_certificate_file is not"),
        (missing_file, "tls_key_file: cannot read .*nothing.key: No such file"),
        (a_folder, "tls_certificate_file: cannot read .*: Is a directory"),
        (keys_of_two_pairs, "two.key does not belong to the certificate in .*one.pem"),
        (other_text, "are not a certificate and its key in PEM form"),
        (key_with_password, "without a password"),
    ],
)
def test_files_that_do_not_fit_are_refused_in_one_line(
    tmp_path: Path, make: Callable[[Path], tuple[str, str]], reason: str
) -> None:
    """Found at the first handshake, or asked about on a terminal that nobody watches."""
    with pytest.raises(ConfigurationError, match=reason) as caught:
        read_tls(*make(tmp_path))
    assert "\n" not in str(caught.value)
