"""Text form of API keys: `duly_<id>_<secret>`. Pure; what a key may do is in access.py.

The id and the secret each end in check characters. A random or mistyped key is therefore refused
without a look-up, and a scanner can tell a key from other text. They are no secret: an attacker
still has to guess 200 random bits.
"""

import hashlib
from random import Random
from typing import NamedTuple

KEY_PREFIX = "duly"
# 32 characters, none of which is read for another.
ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
ID_CHARACTERS = 12
ID_CHECK_CHARACTERS = 3
SECRET_CHARACTERS = 46
SECRET_CHECK_CHARACTERS = 6


class KeyText(NamedTuple):
    id: str
    secret: str

    def __str__(self) -> str:
        return f"{KEY_PREFIX}_{self.id}_{self.secret}"


def draw_key(entropy: Random) -> KeyText:
    drawn_id = draw(entropy, ID_CHARACTERS - ID_CHECK_CHARACTERS)
    key_id = drawn_id + checksum(drawn_id, ID_CHECK_CHARACTERS)
    drawn_secret = draw(entropy, SECRET_CHARACTERS - SECRET_CHECK_CHARACTERS)
    return KeyText(key_id, drawn_secret + checksum(key_id + drawn_secret, SECRET_CHECK_CHARACTERS))


def read_key_text(text: str) -> KeyText | None:
    """None: duly never made such a key."""
    prefix, _, rest = text.partition("_")
    key_id, _, secret = rest.partition("_")
    if prefix != KEY_PREFIX or len(secret) != SECRET_CHARACTERS or not is_key_id(key_id):
        return None
    drawn, check = secret[:-SECRET_CHECK_CHARACTERS], secret[-SECRET_CHECK_CHARACTERS:]
    is_whole = check == checksum(key_id + drawn, SECRET_CHECK_CHARACTERS)
    return KeyText(key_id, secret) if is_whole else None


def is_key_id(text: str) -> bool:
    if len(text) != ID_CHARACTERS:
        return False
    drawn, check = text[:-ID_CHECK_CHARACTERS], text[-ID_CHECK_CHARACTERS:]
    return check == checksum(drawn, ID_CHECK_CHARACTERS)


def draw(entropy: Random, characters: int) -> str:
    return "".join(entropy.choice(ALPHABET) for _ in range(characters))


def checksum(text: str, characters: int) -> str:
    digest = hashlib.sha256(text.encode("utf-8", "replace")).digest()
    return "".join(ALPHABET[byte % len(ALPHABET)] for byte in digest[:characters])
