"""What the loader remembers of a doorbell that it cannot follow at once."""

from datetime import timedelta
from typing import cast
from uuid import UUID

from duly.coordinator.ownership import Coordinator
from duly.environment import Environment
from duly.scheduler.board import Board
from duly.scheduler.database_time import DatabaseTime
from duly.scheduler.loader import Loader, PlaceState
from duly.store.database import Database
from duly.store.load import Cursor, Due, Place

PLACE = Place(1, 5, 2)


def test_a_doorbell_that_finds_no_room_is_read_next(environment: Environment) -> None:
    """The place was read far ahead and is full; a task that fires sooner must not wait for the
    sweep, seconds after its instant."""
    time = DatabaseTime(environment.clock)
    now = environment.clock.now()
    time.observe(now)
    board = Board(time.now())
    nobody = cast("Coordinator", None)
    loader = Loader(cast("Database", None), environment, nobody, board, time)
    ahead = now + timedelta(seconds=9)
    loader.places[PLACE] = PlaceState(cursor=Cursor(ahead), is_caught_up=False, load_at=100.0)
    due_at = now + timedelta(seconds=1)
    loader.admit([Due(*PLACE, UUID(int=1), 0, due_at, 5, None, "t", None, None, None)])
    state = loader.places[PLACE]
    assert len(board.known) == 0
    assert state.cursor.due_at < due_at
    assert state.load_at == 0.0
