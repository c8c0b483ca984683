"""Settings of JWT: what is refused before anything starts, because it would let in too many."""

from collections.abc import Sequence

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

from duly.api.bearer_tokens import JwtSettings, jwt_settings
from duly.domain.errors import ConfigurationError
from duly.settings import load_settings

SECRET = "0123456789abcdef0123456789abcdef"
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
CURVE = ec.generate_private_key(ec.SECP256R1())
EDWARDS = ed25519.Ed25519PrivateKey.generate()


def public_pem(key: PrivateKeyTypes) -> str:
    return (
        key.public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        .decode()
    )


def private_pem(key: PrivateKeyTypes) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()


def configured(algorithms: Sequence[str], key: str) -> JwtSettings | None:
    return jwt_settings("https://issuer.example", "duly", algorithms, key)


@pytest.mark.parametrize(
    ("algorithms", "key"),
    [
        (["HS256", "HS512"], SECRET),
        (["RS256", "PS512"], public_pem(RSA)),
        (["ES256"], public_pem(CURVE)),
        (["EdDSA"], public_pem(EDWARDS)),
    ],
)
def test_a_sound_configuration_is_taken(algorithms: list[str], key: str) -> None:
    """A check that refuses what is right makes people look for ways around it."""
    settings = configured(algorithms, key)
    assert settings is not None
    assert settings.algorithms == tuple(algorithms)


def test_nothing_configured_is_no_jwt() -> None:
    """Most installations have none."""
    assert jwt_settings("", "", [], "") is None


@pytest.mark.parametrize("missing", ["jwt_issuer", "jwt_audience", "jwt_algorithms", "jwt_key"])
def test_all_of_it_or_none(missing: str) -> None:
    """Without an audience, a token for another service opens this one."""
    given = {
        "jwt_issuer": "https://issuer.example",
        "jwt_audience": "duly",
        "jwt_algorithms": ["HS256"],
        "jwt_key": SECRET,
    }
    values = {name.removeprefix("jwt_"): value for name, value in given.items() if name != missing}
    values[missing.removeprefix("jwt_")] = ""
    with pytest.raises(ConfigurationError, match=f"missing: {missing}$"):
        jwt_settings(**values)  # type: ignore[arg-type]


SMALL_RSA = rsa.generate_private_key(public_exponent=65537, key_size=1024)


@pytest.mark.parametrize(
    ("algorithms", "key", "reason"),
    [
        (["none"], SECRET, "'none', which is none of"),
        (["hs256"], SECRET, "'hs256', which is none of"),
        (["RS256", "HS256"], public_pem(RSA), "mixes"),
        (["HS256"], SECRET[:-1], "shorter than 32 bytes"),
        (["HS256"], public_pem(RSA), "a public key is none"),
        (["RS256"], private_pem(RSA), "is a private key"),
        (["RS256"], SECRET, "not a public key in PEM form for RS256"),
        (["RS256"], public_pem(CURVE), "not a public key in PEM form for RS256"),
        (["RS256", "ES256"], public_pem(RSA), "not a public key in PEM form for ES256"),
        (["RS256"], public_pem(SMALL_RSA), "has 1024 bits"),
    ],
)
def test_a_configuration_that_lets_in_too_many_is_refused(
    algorithms: list[str], key: str, reason: str
) -> None:
    """Each of these was somebody's breach."""
    with pytest.raises(ConfigurationError, match=reason) as caught:
        configured(algorithms, key)
    assert "\n" not in str(caught.value)
    assert key not in str(caught.value)


def test_algorithms_are_a_list_in_a_file_and_words_with_commas_elsewhere() -> None:
    """The environment has no lists."""
    loaded = load_settings({}, {"DULY_JWT_ALGORITHMS": "RS256, PS256,", "XDG_CONFIG_HOME": "/no"})
    assert loaded.settings.jwt_algorithms == ["RS256", "PS256"]
