"""Tenant shards: over which shards each tenant's new tasks are laid: written by the scheduler as
limits change, read by the submitter of the same process."""

from collections.abc import Container, Mapping

from duly.store.tenants import Tenant


class TenantShards:
    def __init__(self, *, is_known: bool = True) -> None:
        """Where it `is_known` at once, each tenant has one shard until told otherwise."""
        self.is_known = is_known
        self.spreads: Mapping[int, int] = {}
        # Those with a cap or a rate stay in one shard: one node dispatches all of their tasks.
        self.at_home: Container[int] = frozenset()

    def learn(self, tenants: Mapping[int, Tenant]) -> None:
        self.spreads = {tenant.id: tenant.spread for tenant in tenants.values()}
        self.at_home = frozenset(tenant.id for tenant in tenants.values() if tenant.is_at_home)
        self.is_known = True

    def spread_of(self, tenant: int) -> int:
        return 1 if tenant in self.at_home else self.spreads.get(tenant, 1)
