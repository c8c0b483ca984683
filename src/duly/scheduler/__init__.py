"""The scheduler: load due timers, timing wheel, gates, dispatch tickets, reap leases, fire
schedules."""
