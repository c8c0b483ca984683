"""Failure fingerprint: a hash of an error without its variable parts."""

import re
from hashlib import sha256

# Numbers, ids, addresses and quoted values differ between two cases of one cause.
ACCIDENTS = re.compile(r"0x[0-9a-fA-F]+|[0-9a-fA-F-]{32,36}|'[^']*'|\"[^\"]*\"|\d+")
FINGERPRINT_CHARACTERS = 16


def fingerprint(task_type: str, reason: str, error: str | None) -> str:
    first_line = (error or "").strip().split("\n", 1)[0]
    cause = f"{task_type}\n{reason}\n{ACCIDENTS.sub('*', first_line)}"
    return sha256(cause.encode(errors="replace")).hexdigest()[:FINGERPRINT_CHARACTERS]
