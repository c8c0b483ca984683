"""The scheduler's roles that wake each other: made first, given to each by its constructor."""

from dataclasses import dataclass, field

from duly.role import Wakeup


@dataclass(frozen=True, slots=True)
class SchedulerWakeups:
    loader: Wakeup = field(default_factory=Wakeup)
    dispatcher: Wakeup = field(default_factory=Wakeup)
    bounds: Wakeup = field(default_factory=Wakeup)
    reaper: Wakeup = field(default_factory=Wakeup)
