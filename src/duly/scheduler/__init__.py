"""From "due soon" in the database to a ticket in a lane: load, wheel, gates, dispatch, reap."""
