"""When a consumer that waits goes on, to the turn of the loop."""

import asyncio
from uuid import UUID

from duly.broker.consumer import WaitingConsumer
from duly.domain.lanes import Lane

LANE = Lane(7, 1, 1)
HOLDER = UUID(int=7)
LONG_S = 60.0


async def test_a_consumer_goes_on_before_whoever_put_a_task_into_its_hands() -> None:
    """The submitter's own work would come between a task and its handler."""
    waiter, order, answer = waiting(), [], asyncio.get_running_loop().create_future()

    async def consume() -> None:
        await waiter.wait(LONG_S)
        order.append("consumer")

    async def submit() -> None:
        await answer
        order.append("submitter")

    running = [asyncio.create_task(consume()), asyncio.create_task(submit())]
    await asyncio.sleep(0)
    waiter.take([])
    answer.set_result(None)
    await asyncio.gather(*running)
    assert order == ["consumer", "submitter"]


async def test_a_consumer_reserved_in_the_turn_its_time_runs_out_waits_on() -> None:
    """It was roused by its timer and has not run yet: what is stored now is in its hands."""
    waiter = waiting()
    running = asyncio.create_task(waiter.wait(LONG_S))
    await asyncio.sleep(0)
    waiter.end_wait()
    waiter.is_reserved = True
    await asyncio.sleep(0)
    assert not running.done()
    waiter.take([])
    await running
    assert waiter.is_woken


async def test_a_consumer_that_is_told_leaves_no_timer_behind() -> None:
    """One for each task that came alone, for as long as a consumer waits."""
    loop = asyncio.get_running_loop()
    waiter, made = waiting(), []
    call_later = loop.call_later

    def note(*arguments: object) -> asyncio.TimerHandle:
        made.append(call_later(*arguments))  # type: ignore[arg-type]
        return made[-1]

    loop.call_later = note  # type: ignore[assignment,method-assign]
    running = asyncio.create_task(waiter.wait(LONG_S))
    await asyncio.sleep(0)
    waiter.wake()
    await running
    (timer,) = made
    assert timer.cancelled()


def waiting() -> WaitingConsumer:
    return WaitingConsumer([LANE], HOLDER, 1, 15.0)
