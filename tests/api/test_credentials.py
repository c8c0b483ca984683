"""Who is let in, and who is not: keys, tokens and signatures, each with one thing wrong."""

import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from random import Random
from typing import Any
from uuid import UUID

import jwt
import msgspec
import pytest

from duly.api.bearer_tokens import JwtSettings
from duly.domain.api_keys import draw, draw_key
from duly.environment import Environment
from duly.store.database import Database
from duly.store.keys import revoke_key
from duly.testing.clock import ManualClock
from tests.api.conftest import Front, Reply, open_front
from tests.api.test_bearer_tokens import RSA, SECRET, private_pem, public_pem

ISSUER, AUDIENCE = "https://issuer.example", "duly"
PATH = "/v1/tasks"
TASK = {"type": "email.send", "delay_s": 3600}
PUBLIC, PRIVATE = public_pem(RSA), private_pem(RSA)


@dataclass
class Scene:
    """A door that believes an issuer, on a clock that stands still."""

    front: Front
    clock: ManualClock

    def claims(self, **changed: Any) -> dict[str, Any]:
        """A producer's, good for a minute; None removes a claim."""
        claims = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": "somebody",
            "exp": self.clock.now().timestamp() + 60,
            "tenant": "default",
            "role": "producer",
        }
        return {name: value for name, value in (claims | changed).items() if value is not None}

    def token(self, key: str = PRIVATE, algorithm: str = "RS256", **changed: Any) -> str:
        return jwt.encode(self.claims(**changed), key, algorithm=algorithm)

    async def bearing(self, token: str, path: str = PATH) -> Reply:
        return await self.front.call("GET", path, key=token)


@pytest.fixture
async def scene(database: Database, clock: ManualClock) -> AsyncIterator[Scene]:
    environment = Environment(clock=clock, random=Random(7))
    tokens = JwtSettings(ISSUER, AUDIENCE, ("RS256",), PUBLIC)
    async with open_front(database, environment, tokens) as front:
        yield Scene(front, clock)


def turned_away(reply: Reply) -> bool:
    """Always in the same words, so that nobody learns which part was wrong."""
    assert reply.status == 401, (reply.status, reply.body)
    assert reply.code == "unauthenticated"
    assert reply.headers["WWW-Authenticate"] == "Bearer"
    assert reply.json["detail"] == "the credential is missing, wrong, expired or revoked"
    return True


async def test_no_credential_is_turned_away(front: Front) -> None:
    """A door that stands open once is open."""
    assert turned_away(await front.call("GET", PATH, key=None))


async def test_two_kinds_at_once_are_turned_away(front: Front) -> None:
    """Which of the two is believed would be an accident of the code."""
    headers = {"Authorization": f"Bearer {front.admin}", "X-Duly-Key": "abc"}
    assert turned_away(await front.call("GET", PATH, key=None, headers=headers))


NO_CREDENTIALS = (
    *("", "Bearer", "Bearer ", "Basic dXNlcjpwYXNz", "Bearer x.y.z", "Bearer " + "x" * 9000),
    *("Bearer duly_", "Bearer duly_x", "Bearer duly__", "Bearer duly_\xe9_\xe9"),
)


async def test_what_is_no_credential_is_turned_away(front: Front) -> None:
    """Whatever is sent must be an answer, never a mistake of ours."""
    for value in NO_CREDENTIALS:
        headers = {"Authorization": value}
        assert turned_away(await front.call("GET", PATH, key=None, headers=headers)), value


async def test_one_character_changed_is_turned_away(front: Front) -> None:
    """In the name or in the secret of a key."""
    for at in (6, 10, -1):
        key = list(front.admin)
        key[at] = "a" if key[at] != "a" else "b"
        assert turned_away(await front.call("GET", PATH, key="".join(key)))
    assert turned_away(await front.call("GET", PATH, key=front.admin + "a"))
    assert turned_away(await front.call("GET", PATH, key=front.admin[:-1]))


async def test_a_key_that_was_never_made_costs_no_look_up(front: Front) -> None:
    """Random keys, sent in numbers, would keep the database from answering those who have one."""
    looked = count_looks(front)
    entropy, sound = Random(1), draw_key(Random(2))
    for _ in range(20):
        made_up = f"duly_{draw(entropy, 12)}_{draw(entropy, 46)}"
        assert turned_away(await front.call("GET", PATH, key=made_up))
        key_id = draw(entropy, 12)
        assert turned_away(await signed(front, f"duly_{key_id}_{sound.secret}", "GET", PATH))
    for at in range(5, len(str(sound))):
        mistyped = str(sound)[:at] + ("b" if str(sound)[at] != "b" else "c") + str(sound)[at + 1 :]
        assert turned_away(await front.call("GET", PATH, key=mistyped))
    assert looked == []


async def test_a_key_that_is_gone_is_looked_up_once_in_a_while(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its program goes on calling; and made-up keys with sound check characters push out no key
    that exists."""
    monkeypatch.setattr("duly.ttl_cache.ABSENT_MAX", 3)
    assert (await front.call("GET", PATH, key=front.producer)).status == 200
    looked = count_looks(front)
    gone = str(draw_key(Random(3)))
    for _ in range(5):
        assert turned_away(await front.call("GET", PATH, key=gone))
    assert len(looked) == 1
    for seed in range(10, 20):
        assert turned_away(await front.call("GET", PATH, key=str(draw_key(Random(seed)))))
    assert len(front.door.authenticator.keys.absent) == 3
    assert front.door.authenticator.keys.knows(front.producer.split("_")[1])


def count_looks(front: Front) -> list[str]:
    """The ids that are looked up from now on."""
    keys, looked = front.door.authenticator.keys, []
    look = keys.look

    async def counted(key_id: str) -> Any:
        looked.append(key_id)
        return await look(key_id)

    keys.look = counted
    return looked


async def test_a_key_ends_with_its_time(database: Database) -> None:
    """Also for a process that remembers it from before: its own clock ends it."""
    clock = ManualClock(await database_now(database))
    environment = Environment(clock=clock, random=Random(7))
    async with open_front(database, environment) as front:
        key = await front.make_key(front.tenant, "producer", expires_in_s=60.0)
        assert (await front.call("GET", PATH, key=key)).status == 200
        clock.advance(61)
        front.door.authenticator.keys.kept = {  # type: ignore[assignment]
            name: (clock.monotonic() + 2, known)
            for name, (_, known) in front.door.authenticator.keys.kept.items()
        }
        assert turned_away(await front.call("GET", PATH, key=key))


async def database_now(database: Database) -> Any:
    (row,) = await database.fetch("SELECT clock_timestamp() AS now")
    return row["now"]


async def test_a_revoked_key_is_turned_away_within_seconds(
    still_front: tuple[Front, ManualClock],
) -> None:
    """Revoked elsewhere, and remembered here."""
    front, clock = still_front
    key = await front.make_key(front.tenant, "producer")
    assert (await front.call("GET", PATH, key=key)).status == 200
    assert await revoke_key(front.database, front.tenant.id, key.split("_")[1])
    clock.advance(5)
    assert turned_away(await front.call("GET", PATH, key=key))


async def test_a_key_of_the_other_kind_is_turned_away(front: Front) -> None:
    """A signing secret that also bears would travel in the clear."""
    signing = await front.make_key(front.tenant, "producer", is_signing=True)
    assert turned_away(await front.call("GET", PATH, key=signing))
    assert turned_away(await signed(front, front.producer, "GET", PATH))


async def test_a_sound_token_is_let_in_as_its_role_and_tenant(scene: Scene) -> None:
    """And as nothing else."""
    assert (await scene.bearing(scene.token())).status == 200
    made = await scene.front.call("POST", PATH, TASK, key=scene.token())
    assert made.status == 201
    path = f"{PATH}/{made.json['id']}"
    assert (await scene.bearing(scene.token(tenant="other"), path)).status == 404
    assert (await scene.bearing(scene.token(role="worker"))).status == 403


async def test_a_token_ends_with_its_time(scene: Scene) -> None:
    """By the clock that everything else goes by."""
    token = scene.token()
    scene.clock.advance(59)
    assert (await scene.bearing(token)).status == 200
    scene.clock.advance(1)
    assert turned_away(await scene.bearing(token))


async def test_a_token_from_the_future_is_turned_away(scene: Scene) -> None:
    """An issuer's clock may be a little ahead, and no more."""
    now = scene.clock.now().timestamp()
    for claim in ("nbf", "iat"):
        local_tickets: dict[str, Any] = {claim: now + 10}
        far: dict[str, Any] = {claim: now + 11}
        assert (await scene.bearing(scene.token(**local_tickets))).status == 200
        assert turned_away(await scene.bearing(scene.token(**far)))


STRANGE: list[Any] = [
    *(1, 1.5, True, 10**400, float("nan"), "", "a\x00b", "a\nb", "\ud800", "x" * 3000),
    *([], {}, [["duly"]], [1, None], {"a": 1}, ["admin"], [{}]),
]
WRONG_CLAIMS: list[dict[str, Any]] = [
    {"iss": "https://other.example"},
    {"iss": None},
    {"aud": "another service"},
    {"aud": None},
    {"aud": []},
    {"exp": None},
    {"exp": True},
    {"exp": "4102444800"},
    {"exp": -1},
    {"exp": float("inf")},
    {"sub": None},
    {"sub": ""},
    {"tenant": None},
    {"tenant": "nobody"},
    {"tenant": ["default"]},
    {"tenant": 1},
    {"role": None},
    {"role": "root"},
    {"role": ["admin"]},
    {"reach": "world"},
    {"reach": "installation"},
    {"reach": "installation", "role": "worker"},
    *(
        {claim: value}
        for claim in ("exp", "nbf", "iat")
        for value in (10**400, -(10**400), float("nan"), float("-inf"), "1", [1], {"a": 1}, False)
    ),
    {"exp": 253_402_300_800},
    *({claim: value} for claim in ("aud", "iss") for value in STRANGE),
    *({claim: value} for claim in ("role", "reach", "sub", "tenant") for value in STRANGE),
]


async def test_a_token_with_one_claim_wrong_is_turned_away(scene: Scene) -> None:
    """A sound signature says who wrote it, not that it was written for us."""
    for changed in WRONG_CLAIMS:
        # Written by hand: the library refuses to make some of these.
        token = raw_token(HEADER, json.dumps(scene.claims(**changed)).encode())
        assert turned_away(await scene.bearing(token)), changed
    sound = raw_token(HEADER, json.dumps(scene.claims()).encode())
    assert (await scene.bearing(sound)).status == 200


def raw_token(header: bytes, claims: bytes) -> str:
    """Signed with the issuer's own key, whatever it says."""
    text = jwt.utils.base64url_encode(header) + b"." + jwt.utils.base64url_encode(claims)
    algorithm = jwt.get_algorithm_by_name("RS256")
    signature = algorithm.sign(text, algorithm.prepare_key(PRIVATE))
    return (text + b"." + jwt.utils.base64url_encode(signature)).decode()


HEADER = b'{"alg":"RS256","typ":"JWT"}'
DEEP = b"[" * 2000 + b"]" * 2000
RAW_TOKENS = {
    "deep header": (b'{"alg":"RS256","x":' + DEEP + b"}", b"{}"),
    "deep claims": (HEADER, b'{"exp":' + DEEP + b"}"),
    "only brackets": (HEADER, b"[" * 4000),
    "long integer": (HEADER, b'{"exp":' + b"9" * 5000 + b"}"),
    "400 digits": (HEADER, b'{"exp":' + b"9" * 400 + b"}"),
    "huge exponent": (HEADER, b'{"exp":1e999}'),
    "not a number": (HEADER, b'{"exp":NaN}'),
    "a list": (HEADER, b"[]"),
    "a text": (HEADER, b'"exp"'),
    "no JSON": (HEADER, b"{"),
    "no UTF-8": (HEADER, b'{"exp":"\xff"}'),
    "UTF-16": (HEADER, '{"exp":1}'.encode("utf-16")),
    "header is a list": (b"[]", b"{}"),
    "algorithm is a list": (b'{"alg":["RS256"]}', b"{}"),
    "key id is a number": (b'{"alg":"RS256","kid":1}', b"{}"),
    "critical header": (b'{"alg":"RS256","crit":["b64"],"b64":false}', b"{}"),
}


async def test_a_token_that_cannot_be_read_is_turned_away(scene: Scene) -> None:
    """A parser that gives up in its own way was answered with 500."""
    for name, (header, claims) in RAW_TOKENS.items():
        assert turned_away(await scene.bearing(raw_token(header, claims))), name


async def test_a_token_may_reach_the_installation_only_as_operator_or_admin(scene: Scene) -> None:
    """The claim `reach` lets a call name another tenant."""
    far = scene.token(role="admin", reach="installation")
    assert (await scene.bearing(far, f"{PATH}?tenant=other")).status == 200
    local_tickets = scene.token(role="admin")
    assert (await scene.bearing(local_tickets, f"{PATH}?tenant=other")).status == 404


def unsigned(claims: dict[str, Any]) -> str:
    return jwt.encode(claims, "", algorithm="none")


def signed_with_public_key(claims: dict[str, Any]) -> str:
    """By hand: the library refuses to make one."""
    header = jwt.utils.base64url_encode(b'{"alg":"HS256","typ":"JWT"}')
    text = header + b"." + jwt.utils.base64url_encode(msgspec.json.encode(claims))
    mac = hmac.new(PUBLIC.encode(), text, hashlib.sha256).digest()
    return (text + b"." + jwt.utils.base64url_encode(mac)).decode()


async def test_the_token_does_not_choose_how_it_is_checked(scene: Scene) -> None:
    """`alg: none`, or the public key used as a secret: everybody knows both."""
    assert turned_away(await scene.bearing(unsigned(scene.claims())))
    assert turned_away(await scene.bearing(signed_with_public_key(scene.claims())))
    assert turned_away(await scene.bearing(scene.token(SECRET, "HS256")))
    assert turned_away(await scene.bearing(scene.token(algorithm="RS512")))


async def test_a_changed_token_is_turned_away(scene: Scene) -> None:
    """Claims or signature."""
    head, claims, signature = scene.token().split(".")
    _, others, _ = scene.token(role="admin").split(".")
    assert turned_away(await scene.bearing(f"{head}.{others}.{signature}"))
    assert turned_away(await scene.bearing(f"{head}.{claims}.{signature[:-4]}AAAA"))
    assert turned_away(await scene.bearing(f"{head}.{claims}."))


async def test_without_configuration_no_token_is_believed(front: Front) -> None:
    """The default of a list of algorithms is what attackers hope for."""
    token = jwt.encode({"role": "admin", "tenant": "default"}, SECRET, algorithm="HS256")
    assert turned_away(await front.call("GET", PATH, key=token))


@dataclass(frozen=True)
class Signed:
    """What is signed, which may differ from what is sent."""

    method: str
    target: str
    timestamp: str
    nonce: str
    content_type: str
    idempotency_key: str
    body: bytes

    def headers(self, key: str) -> dict[str, str]:
        _, key_id, secret = key.split("_")
        lines = ["v1", self.method, self.target, self.timestamp, self.nonce]
        lines += [self.content_type, self.idempotency_key, hashlib.sha256(self.body).hexdigest()]
        signature = hmac.new(secret.encode(), "\n".join(lines).encode(), "sha256").hexdigest()
        return {
            "X-Duly-Key": key_id,
            "X-Duly-Timestamp": self.timestamp,
            "X-Duly-Nonce": self.nonce,
            "X-Duly-Signature": f"v1={signature}",
        }


async def signed(
    front: Front, key: str, method: str, path: str, body: bytes = b"", /, **changed: Any
) -> Reply:
    """`changed` is what the signature says instead of the truth; a header's name, what is sent.

    The nonce is new each time unless it is given."""
    now = int(front.environment.clock.now().timestamp())
    fields = {
        "method": method,
        "target": path,
        "timestamp": str(now + changed.pop("seconds", 0)),
        "nonce": f"nonce-{front.environment.random.getrandbits(64):x}",
        "content_type": "application/json" if body else "",
        "idempotency_key": "",
        "body": body,
    }
    sent = {name: value for name, value in changed.items() if name[0].isupper()}
    said = {name: value for name, value in changed.items() if not name[0].isupper()}
    headers = Signed(**(fields | said)).headers(key) | sent
    return await front.call(method, path, key=None, headers=headers, raw=body or None)


@pytest.fixture
async def signer(front: Front) -> str:
    return await front.make_key(front.tenant, "producer", is_signing=True)


BODY = msgspec.json.encode(TASK)


async def test_a_signed_call_is_let_in(front: Front, signer: str) -> None:
    """With query and body, both of which are signed."""
    assert (await signed(front, signer, "GET", f"{PATH}?state=SCHEDULED&limit=1")).status == 200
    assert (await signed(front, signer, "POST", PATH, BODY)).status == 201
    known = {"idempotency_key": "order-7", "Idempotency-Key": "order-7"}
    assert (await signed(front, signer, "POST", PATH, BODY, **known)).status == 201
    assert (await signed(front, signer, "POST", PATH, BODY, **known)).status == 200
    assert (await signed(front, signer, "DELETE", f"{PATH}/{UUID(int=7)}")).status == 404


WRONG_SIGNATURES: list[dict[str, Any]] = [
    {"body": b'{"type":"other"}'},
    {"body": b""},
    {"target": "/v1/tasks/batch"},
    {"target": "/v1/tasks?tenant=other"},
    {"method": "PUT"},
    {"X-Duly-Timestamp": "1"},
    {"X-Duly-Nonce": "another-nonce"},
    {"X-Duly-Signature": "0" * 64},
    {"X-Duly-Signature": "v1=" + "0" * 64},
    {"X-Duly-Signature": "v1="},
    {"X-Duly-Signature": ""},
    {"Idempotency-Key": "added-on-the-way"},
    {"idempotency_key": "removed-on-the-way"},
    {"idempotency_key": "one", "Idempotency-Key": "another"},
    {"Content-Type": "application/x-ndjson"},
    {"content_type": ""},
    {"content_type": "application/json; charset=utf-8"},
    {"X-Duly-Signature": "\xe9"},
    {"X-Duly-Key": "nobody"},
    {"nonce": "short"},
    {"nonce": "n" * 129},
    {"timestamp": "-5"},
    {"timestamp": "now"},
    {"timestamp": "1e9"},
    {"timestamp": "9" * 13},
]


async def test_a_call_that_is_not_what_was_signed_is_turned_away(front: Front, signer: str) -> None:
    """A man in the middle may change any part that the signature leaves out."""
    for changed in WRONG_SIGNATURES:
        assert turned_away(await signed(front, signer, "POST", PATH, BODY, **changed)), changed
    listed = await front.call("GET", PATH)
    assert listed.json["items"] == []


async def test_a_signature_does_not_fit_another_query(front: Front, signer: str) -> None:
    """The query decides what is listed, cancelled or purged."""
    sent = f"{PATH}?limit=1"
    assert turned_away(await signed(front, signer, "GET", sent, target=f"{PATH}?limit=2"))
    assert turned_away(await signed(front, signer, "GET", sent, target=PATH))


async def test_a_signature_is_good_for_one_call(front: Front, signer: str) -> None:
    """What was seen once on the wire must not work again, also not at another process."""
    first = await signed(front, signer, "POST", PATH, BODY, nonce="nonce-0001")
    assert first.status == 201
    assert turned_away(await signed(front, signer, "POST", PATH, BODY, nonce="nonce-0001"))
    other = await front.make_key(front.tenant, "producer", is_signing=True)
    assert (await signed(front, other, "POST", PATH, BODY, nonce="nonce-0001")).status == 201


@pytest.mark.parametrize("seconds", [-301, 301])
async def test_a_stale_or_early_signature_is_turned_away(
    still_front: tuple[Front, ManualClock], seconds: int
) -> None:
    """Nonces are remembered for ten minutes; older signatures could be used again."""
    front, _ = still_front
    signer = await front.make_key(front.tenant, "producer", is_signing=True)
    inside = seconds - 1 if seconds > 0 else seconds + 1
    assert (await signed(front, signer, "GET", PATH, seconds=inside)).status == 200
    assert turned_away(await signed(front, signer, "GET", PATH, seconds=seconds))


async def test_a_refused_signature_uses_up_no_nonce(front: Front, signer: str) -> None:
    """Else anybody could spend the nonces of somebody else's calls."""
    wrong = {"nonce": "nonce-0002", "X-Duly-Signature": "0" * 64}
    assert turned_away(await signed(front, signer, "GET", PATH, **wrong))
    assert (await signed(front, signer, "GET", PATH, nonce="nonce-0002")).status == 200
