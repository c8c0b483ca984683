"""Access control values: the roles of a credential, and its reach."""

from dataclasses import dataclass
from enum import StrEnum


class Access(StrEnum):
    """A credential's role. An admin may do everything; an operator is also a producer; a viewer
    reads what an operator reads, and changes nothing."""

    VIEWER = "viewer"
    PRODUCER = "producer"
    WORKER = "worker"
    OPERATOR = "operator"
    ADMIN = "admin"


PRODUCERS = frozenset({Access.PRODUCER, Access.OPERATOR, Access.ADMIN})
WORKERS = frozenset({Access.WORKER, Access.ADMIN})
READERS = frozenset(Access)
OPERATORS = frozenset({Access.OPERATOR, Access.ADMIN})
OBSERVERS = OPERATORS | {Access.VIEWER}
ADMINS = frozenset({Access.ADMIN})


class Reach(StrEnum):
    TENANT = "tenant"
    INSTALLATION = "installation"


@dataclass(frozen=True, slots=True)
class Credential:
    """An authenticated caller. `types` are the task types it may submit and change; None is all."""

    actor: str
    tenant: int
    tenant_name: str
    access: Access
    reach: Reach = Reach.TENANT
    types: frozenset[str] | None = None
    key_id: str | None = None
    # Its tenant is suspended: it may finish what it has begun, and nothing else.
    is_suspended: bool = False
    # Calls a second, for all processes together; None is any number.
    request_rate: float | None = None
