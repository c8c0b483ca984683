"""From a ticket in a lane to a settled attempt: lease, run, heartbeat, settle."""
