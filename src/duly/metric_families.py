"""Families of metrics that the Prometheus client has no class for. No metric is named here.

Its own counters and histograms cost microseconds a value; these take batches, or are read when they
are scraped. A family whose value is unknown has no sample: a zero would say that all is well.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TypeAlias

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

# Each tenant with a label of its own costs the collector memory for ever; the rest share one.
TENANT_LABELS_MAX = 200
OTHER_TENANTS = "(other)"
# For credentials that may not know the tenants.
ALL_TENANTS = "(all)"
# Of one family, combinations of labels; the rest share one.
SERIES_MAX = 500
# A histogram has a line for each bound.
HISTOGRAM_SERIES_MAX = 150
POOL_LABELS_MAX = 200
OTHER_SERIES = "(other)"
WAIT_BOUNDS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
    *(60.0, 300.0, 1800.0, 3600.0, 21600.0),
)
CALL_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)
SIZE_BOUNDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)

Labels: TypeAlias = tuple[str, ...]
# None: not known now. A number of a family without labels, or one for each combination of them.
Reading: TypeAlias = "float | Mapping[Labels, float] | None"


def unknown() -> Reading:
    return None


class Buckets:
    """The observations of one combination of labels."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def observe_same(self, value: float, count: int) -> None:
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    def observe_many(self, values: Iterable[float]) -> None:
        bounds, counts, total = self.bounds, self.counts, 0.0
        for value in values:
            counts[bisect_left(bounds, value)] += 1
            total += value
        self.total += total

    def cumulative(self) -> list[tuple[str, float]]:
        bounds = [*(str(float(bound)) for bound in self.bounds), "+Inf"]
        return list(zip(bounds, accumulate(self.counts), strict=True))


class Histograms:
    """A histogram for each combination of labels; `of()` where there are none."""

    def __init__(
        self,
        name: str,
        documentation: str,
        registry: CollectorRegistry | None,
        labels: Sequence[str] = (),
        bounds: Sequence[float] = WAIT_BOUNDS_S,
        known: Iterable[str] = (),
    ) -> None:
        """`known`: values of the only label that are shown before the first observation."""
        self.name = name
        self.documentation = documentation
        self.labels = labels
        self.bounds = bounds
        self.series: dict[Labels, Buckets] = {}
        if not labels:
            self.of()
        for value in known:
            self.of(value)
        if registry is not None:
            registry.register(self)

    def of(self, *values: str) -> Buckets:
        found = self.series.get(values)
        if found is None:
            if len(self.series) >= HISTOGRAM_SERIES_MAX:
                values = (OTHER_SERIES,) * len(self.labels)
            found = self.series.setdefault(values, Buckets(self.bounds))
        return found

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self.name, self.documentation, labels=self.labels)
        for values, buckets in self.series.items():
            family.add_metric(values, buckets.cumulative(), buckets.total)
        yield family


class Histogram(Buckets):
    """One without labels."""

    __slots__ = ("documentation", "name")

    def __init__(
        self,
        name: str,
        documentation: str,
        registry: CollectorRegistry | None,
        bounds: Sequence[float] = WAIT_BOUNDS_S,
    ) -> None:
        super().__init__(bounds)
        self.name = name
        self.documentation = documentation
        if registry is not None:
            registry.register(self)

    def collect(self) -> Iterator[HistogramMetricFamily]:
        yield HistogramMetricFamily(self.name, self.documentation, self.cumulative(), self.total)


class Counts:
    """A counter for each combination of labels."""

    def __init__(
        self,
        name: str,
        documentation: str,
        registry: CollectorRegistry | None,
        labels: Sequence[str] = (),
        known: Iterable[str] = (),
    ) -> None:
        """`known`: values of the only label that are shown as 0 before the first event."""
        self.name = name
        self.documentation = documentation
        self.labels = labels
        self.series: dict[Labels, float] = {}
        if not labels:
            self.series[()] = 0
        self.series |= {(value,): 0 for value in known}
        if registry is not None:
            registry.register(self)

    @property
    def value(self) -> float:
        """Of all combinations of labels together."""
        return sum(self.series.values())

    def add(self, count: float, *values: str) -> None:
        known = self.series.get(values)
        if known is None:
            if len(self.series) >= SERIES_MAX:
                values = (OTHER_SERIES,) * len(self.labels)
            known = self.series.get(values, 0)
        self.series[values] = known + count

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily(self.name, self.documentation, labels=self.labels)
        for values, count in self.series.items():
            family.add_metric(values, count)
        yield family


class ReadGauge:
    """Read at every scrape; absent while the value is not known."""

    def __init__(
        self,
        name: str,
        documentation: str,
        registry: CollectorRegistry | None,
        labels: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.documentation = documentation
        self.labels = labels
        self.read: Callable[[], Reading] = unknown
        if registry is not None:
            registry.register(self)

    def set_function(self, read: Callable[[], Reading]) -> None:
        self.read = read

    def set(self, value: Reading) -> None:
        """As of now, until the next call; None: not known any more."""
        self.read = lambda: value

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily(self.name, self.documentation, labels=self.labels)
        value = self.read()
        if isinstance(value, Mapping):
            for values, number in value.items():
                family.add_metric(values, number)
        elif value is not None:
            family.add_metric([], value)
        yield family


class TenantGauge:
    """A number of each tenant and, where it has one, a second label. Others vanish when it is shown
    anew. A credential that may not know the tenants sees them merged into one."""

    def __init__(
        self,
        name: str,
        documentation: str,
        merge: Callable[[float, float], float],
        second: str | None = None,
        words: Sequence[str] = ("",),
    ) -> None:
        self.name = name
        self.documentation = documentation
        self.merge = merge
        self.second = second
        self.words = words
        # None: not known in this process.
        self.values: Mapping[tuple[str, int], float] = {}

    def show(self, values: Mapping[tuple[str, int], float]) -> None:
        self.values = with_bounded_tenants(values, self.merge)

    def clear(self) -> None:
        self.values = {}

    def family(self, *, with_tenants: bool) -> GaugeMetricFamily:
        labels = ["tenant"] if self.second is None else ["tenant", self.second]
        family = GaugeMetricFamily(self.name, self.documentation, labels=labels)
        values = self.values if with_tenants else self.together()
        for (tenant, number), value in values.items():
            family.add_metric([tenant, self.words[number]][: len(labels)], value)
        return family

    def together(self) -> dict[tuple[str, int], float]:
        merged: dict[tuple[str, int], float] = {}
        for (_, number), value in self.values.items():
            pair = (ALL_TENANTS, number)
            merged[pair] = self.merge(merged[pair], value) if pair in merged else value
        return merged


class PoolGauge:
    """A number of each pool of workers. Names of pools are their tenants' business, too."""

    def __init__(self, name: str, documentation: str) -> None:
        self.name = name
        self.documentation = documentation
        self.values: Mapping[tuple[str, str], float] = {}

    def show(self, values: Mapping[tuple[str, str], float]) -> None:
        """The largest keep their labels; the others share one."""
        ranked = sorted(values, key=lambda pool: (-values[pool], pool))
        bounded = {pool: values[pool] for pool in ranked[:POOL_LABELS_MAX]}
        rest = ranked[POOL_LABELS_MAX:]
        if rest:
            bounded[OTHER_TENANTS, OTHER_SERIES] = sum(values[pool] for pool in rest)
        self.values = bounded

    def clear(self) -> None:
        self.values = {}

    def family(self, *, with_tenants: bool) -> GaugeMetricFamily:
        family = GaugeMetricFamily(self.name, self.documentation, labels=["tenant", "pool"])
        if with_tenants:
            for (tenant, pool), value in self.values.items():
                family.add_metric([tenant, pool], value)
        elif self.values:
            family.add_metric([ALL_TENANTS, ALL_TENANTS], sum(self.values.values()))
        return family


class Families(CollectorRegistry):
    """Those of one scrape."""

    def __init__(self, families: Iterable[Metric]) -> None:
        super().__init__()
        self.families = families

    def collect(self) -> Iterable[Metric]:
        return self.families


def with_bounded_tenants(
    values: Mapping[tuple[str, int], float], merge: Callable[[float, float], float]
) -> dict[tuple[str, int], float]:
    """The tenants with the largest values as they are; the others merged into one, band by band."""
    worst: dict[str, float] = {}
    for (tenant, _), value in values.items():
        worst[tenant] = max(value, worst.get(tenant, value))
    ranked = sorted(worst, key=lambda tenant: (-worst[tenant], tenant))
    named = set(ranked[:TENANT_LABELS_MAX])
    bounded: dict[tuple[str, int], float] = {}
    for (tenant, band), value in values.items():
        pair = (tenant if tenant in named else OTHER_TENANTS, band)
        bounded[pair] = merge(bounded[pair], value) if pair in bounded else value
    return bounded


def add(first: float, second: float) -> float:
    return first + second
