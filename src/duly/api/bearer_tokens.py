"""JWT bearer tokens: verification and claims. Tenants are resolved in credentials.py.

Algorithms, issuer, audience and key come from configuration alone. Key locations in a token's
header are ignored; time comes from the environment.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jwt

from duly.domain.access import OBSERVERS, Access, Reach
from duly.domain.errors import ConfigurationError
from duly.domain.limits import text_reason
from duly.environment import Clock

# One secret for both sides, or a key pair: never both, or the public key becomes a secret.
SHARED_SECRET_ALGORITHMS = frozenset({"HS256", "HS384", "HS512"})
KEY_PAIR_ALGORITHMS = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)
SECRET_BYTES_MIN = 32
RSA_BITS_MIN = 2048
# How far an issuer's clock may be ahead of ours. An expiry has no such grace.
AHEAD_S_MAX = 10.0
# The last second of the year 9999: no token is meant to live longer, and no arithmetic overflows.
SECONDS_MAX = 253_402_300_799
REQUIRED = ["exp", "aud", "iss", "sub", "tenant", "role"]
SUBJECT_CHARACTERS_MAX = 255
PEM_MARK = "-----BEGIN"


@dataclass(frozen=True)
class JwtSettings:
    issuer: str
    audience: str
    algorithms: tuple[str, ...]
    key: str


@dataclass(frozen=True)
class Claims:
    subject: str
    tenant_name: str
    access: Access
    reach: Reach
    # Seconds since 1970.
    expires_at: float


class TokenReader:
    def __init__(self, settings: JwtSettings, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        # Read once: a PEM file would otherwise be parsed for every call.
        self.key = prepared_key(settings.algorithms[0], settings.key)

    def read(self, token: str) -> Claims | None:
        """The claims of a valid token; None for an invalid one, whatever the reason."""
        try:
            found = jwt.decode(
                token,
                self.key,
                algorithms=list(self.settings.algorithms),
                issuer=self.settings.issuer,
                audience=self.settings.audience,
                options={
                    "require": REQUIRED,
                    # PyJWT would check these three against the system clock.
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
            access, reach = Access(found["role"]), Reach(found.get("reach", Reach.TENANT))
        except (jwt.PyJWTError, ValueError, TypeError):
            return None
        if not is_timely(found, self.clock.now().timestamp()):
            return None
        if reach is Reach.INSTALLATION and access not in OBSERVERS:
            return None
        subject, tenant_name = found["sub"], found["tenant"]
        if not (isinstance(subject, str) and isinstance(tenant_name, str)):
            return None
        if text_reason(subject, SUBJECT_CHARACTERS_MAX):
            # The subject is written to the audit.
            return None
        return Claims(subject, tenant_name, access, reach, float(found["exp"]))


def is_timely(claims: Mapping[str, Any], now: float) -> bool:
    expires, starts, issued = claims["exp"], claims.get("nbf", now), claims.get("iat", now)
    if not all(is_instant(value) for value in (expires, starts, issued)):
        return False
    latest = now + AHEAD_S_MAX
    return bool(now < expires and starts <= latest and issued <= latest)


def is_instant(value: object) -> bool:
    """Seconds since 1970. Compared, not converted: an integer of 400 digits has no float."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value <= SECONDS_MAX  # type: ignore[operator]


def prepared_key(algorithm: str, key: str) -> Any:
    return jwt.get_algorithm_by_name(algorithm).prepare_key(key)


def jwt_settings(
    issuer: str, audience: str, algorithms: Sequence[str], key: str
) -> JwtSettings | None:
    """JWT settings, all four or none; invalid ones stop the start."""
    given = {
        "jwt_issuer": issuer,
        "jwt_audience": audience,
        "jwt_algorithms": algorithms,
        "jwt_key": key,
    }
    missing = [name for name, value in given.items() if not value]
    if len(missing) == len(given):
        return None
    if missing:
        problem = f"JWT needs all of its settings; missing: {', '.join(missing)}"
        raise ConfigurationError(problem=problem)
    check_algorithms(algorithms)
    if set(algorithms) <= SHARED_SECRET_ALGORITHMS:
        check_secret(key)
    else:
        check_public_key(algorithms, key)
    return JwtSettings(issuer, audience, tuple(algorithms), key)


def check_algorithms(algorithms: Sequence[str]) -> None:
    for algorithm in algorithms:
        if algorithm not in SHARED_SECRET_ALGORITHMS | KEY_PAIR_ALGORITHMS:
            known = ", ".join(sorted(SHARED_SECRET_ALGORITHMS | KEY_PAIR_ALGORITHMS))
            problem = f"jwt_algorithms has {algorithm!r}, which is none of {known}"
            raise ConfigurationError(problem=problem)
    if set(algorithms) & SHARED_SECRET_ALGORITHMS and set(algorithms) & KEY_PAIR_ALGORITHMS:
        raise ConfigurationError(
            problem="jwt_algorithms mixes HS*, which share a secret, with algorithms of key pairs; "
            "anybody with the public key could then sign"
        )


def check_secret(key: str) -> None:
    if PEM_MARK in key:
        problem = "jwt_key is a PEM key, and HS* algorithms need a secret; a public key is none"
        raise ConfigurationError(problem=problem)
    if len(key.encode()) < SECRET_BYTES_MIN:
        problem = f"jwt_key is shorter than {SECRET_BYTES_MIN} bytes and could be guessed"
        raise ConfigurationError(problem=problem)


def check_public_key(algorithms: Sequence[str], key: str) -> None:
    if "PRIVATE KEY" in key:
        problem = "jwt_key is a private key; duly only checks tokens, give it the public one"
        raise ConfigurationError(problem=problem)
    for algorithm in algorithms:
        try:
            prepared = prepared_key(algorithm, key)
        except (jwt.PyJWTError, ValueError, TypeError):
            problem = f"jwt_key is not a public key in PEM form for {algorithm}"
            raise ConfigurationError(problem=problem) from None
    if algorithms[0].startswith(("RS", "PS")) and prepared.key_size < RSA_BITS_MIN:
        problem = f"jwt_key has {prepared.key_size} bits, and RSA needs {RSA_BITS_MIN} or more"
        raise ConfigurationError(problem=problem)
