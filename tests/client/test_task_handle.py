"""Typed handles: tasks submitted with a function's own parameters, results of its own type."""

import asyncio
import dataclasses
import socket
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec
import pydantic
import pytest

import duly
from duly import AsyncClient, Client, Context, TaskRegistry, Worker
from duly.client.errors import InvalidPayload, TaskFailed
from duly.client.http_pool import HttpPool
from duly.client.shared_clients import forget_shared_clients, shared_async_client
from duly.domain.errors import ConfigurationError
from tests.client import computing
from tests.client.conftest import at_work
from tests.story.duly_up import RunningDuly

WAIT_S = 30.0
FAR_S = 3600.0


class Order(msgspec.Struct):
    number: str
    cents: int


@dataclasses.dataclass
class Parcel:
    street: str
    sent_at: datetime


class Line(TypedDict):
    sku: str


class Customer(pydantic.BaseModel):
    name: str
    age: int = pydantic.Field(gt=0)


@dataclasses.dataclass
class Booking:
    customer: Customer


def without_context(to: str, copies: int) -> None: ...


def record_first(order: dict[str, int]) -> None: ...


@pytest.mark.parametrize(
    ("slip", "said"),
    [
        (lambda: Worker(pools="mail"), r"pools is a list of names: pools=\['mail'\]"),
        (lambda: Worker(bands="high"), r"bands is a list"),
        (lambda: TaskRegistry().task(print), r'with its type: @worker.task\("mail.send"\)'),  # type: ignore[arg-type]
        (lambda: TaskRegistry().task("a.b")(without_context), r"\(ctx, to, ...\)"),
        (lambda: TaskRegistry().task("a.b")(record_first), r"\(ctx, order, ...\)"),
        (
            lambda: TaskRegistry().task("a.b", retry={"max_attempt": 3})(computing.double),
            r"no max_attempt; did you mean max_attempts",
        ),
    ],
)
def test_a_slip_is_said_where_it_is_made(slip: Callable[[], Any], said: str) -> None:
    """All were taken: a worker of the pools m, a, i and l, a handler that was never registered,
    one whose tasks all become dead letters."""
    with pytest.raises(ConfigurationError, match=said):
        slip()


@pytest.fixture
def tasks(duly: RunningDuly, pool: str) -> TaskRegistry:
    return TaskRegistry(pool=pool, url=duly.url, api_key=duly.ready["api_key"])


async def test_a_handle_submits_with_its_parameters_and_gives_its_result(
    tasks: TaskRegistry, pool: str, make_worker: Callable[..., Worker]
) -> None:
    """What a typing error in a string or a payload does to a task shows only when it has run."""

    @tasks.task("parcel.send")
    async def send(ctx: Context, parcel: Parcel) -> Parcel:
        return dataclasses.replace(parcel, street=f"{parcel.street} {ctx.attempt}")

    @tasks.task("sum")
    def add(ctx: Context, first: int, second: int = 2) -> int:
        return first + second

    worker = make_worker()
    worker.include(tasks)
    async with at_work(worker):
        parcel = await send.asubmit(Parcel("s", datetime(2026, 1, 1, tzinfo=UTC)))
        assert await parcel.result(WAIT_S) == Parcel("s 1", datetime(2026, 1, 1, tzinfo=UTC))
        assert parcel.target == {"pool": pool}
        first = await asyncio.to_thread(add.submit, 1)
        assert await asyncio.to_thread(first.result, WAIT_S) == 3
        many = await add.asubmit_many(add.call(n, second=n) for n in range(3))
        assert [await each.result(WAIT_S) for each in many] == [0, 2, 4]


async def test_a_model_of_pydantic_goes_there_and_back(
    tasks: TaskRegistry, make_worker: Callable[..., Worker]
) -> None:
    """A type that JSON knows nothing of made a dead letter of every task, hours later."""

    @tasks.task("customer.greet")
    async def greet(ctx: Context, customer: Customer) -> Customer:
        return customer.model_copy(update={"age": customer.age + 1})

    @tasks.task("customer.book")
    async def book(
        ctx: Context, booking: Booking, seats: Annotated[int, pydantic.Field(le=4)] = 1
    ) -> list[Customer]:
        return [booking.customer] * seats

    worker = make_worker()
    worker.include(tasks)
    ada = Customer(name="Ada", age=36)
    async with at_work(worker):
        assert await (await greet.asubmit(ada)).result(WAIT_S) == Customer(name="Ada", age=37)
        assert await (await book.asubmit(Booking(ada), seats=2)).result(WAIT_S) == [ada, ada]
    with pytest.raises(InvalidPayload, match=r"payload/seats: input"):
        book.submit(Booking(ada), seats=5)
    with pytest.raises(InvalidPayload, match=r"payload/booking/customer/age: "):
        book.call(Booking(Customer.model_construct(name="Eve", age=-1)))


async def test_a_result_of_a_failed_task_is_an_error(
    tasks: TaskRegistry, make_worker: Callable[..., Worker]
) -> None:
    """A `None` that stands for a failure is taken for the result."""

    @tasks.task("refuse")
    async def refuse(ctx: Context) -> int:
        raise duly.Reject("not today")

    worker = make_worker()
    worker.include(tasks)
    async with at_work(worker):
        task = await refuse.asubmit()
        with pytest.raises(TaskFailed, match=r"\(refuse\) is FAILED: not today") as failed:
            await task.result(WAIT_S)
    assert failed.value.task.id == task.id


def plain(ctx: Context, to: str, at: datetime, copies: int = 1) -> None: ...


def struct(ctx: Context, order: Order) -> None: ...


def typed_dict(ctx: Context, line: Line) -> None: ...


def model(ctx: Context, customer: Customer) -> None: ...


def nested(ctx: Context, booking: Booking, note: str = "") -> None: ...


def path(ctx: Context, path: Path) -> None: ...


def rest(ctx: Context, /, to: str, **more: int) -> None: ...


def nothing(ctx: Context) -> None: ...


def optional(ctx: Context, size: int = 3) -> None: ...


def handle_of(function: Callable[..., Any]) -> "duly.TaskHandle[..., Any]":
    return TaskRegistry().task("a.b")(function)


@pytest.mark.parametrize(
    ("function", "values", "named", "payload"),
    [
        (
            plain,
            ("a", datetime(2026, 1, 1, tzinfo=UTC)),
            {},
            {"to": "a", "at": "2026-01-01T00:00:00Z"},
        ),
        (struct, (Order("1", 2),), {}, {"number": "1", "cents": 2}),
        (typed_dict, ({"sku": "s"},), {}, {"sku": "s"}),
        (model, (Customer(name="Ada", age=1),), {}, {"name": "Ada", "age": 1}),
        (
            nested,
            (Booking(Customer(name="Ada", age=1)),),
            {},
            {"booking": {"customer": {"name": "Ada", "age": 1}}},
        ),
        (path, (Path("/x"),), {}, {"path": "/x"}),
        (rest, (), {"to": "a", "x": 1}, {"to": "a", "x": 1}),
        (nothing, (), {}, None),
        (optional, (), {}, {}),
        (optional, (), {"size": 4}, {"size": 4}),
    ],
)
def test_arguments_become_the_payload_that_becomes_these_arguments(
    function: Callable[..., Any], values: tuple[Any, ...], named: dict[str, Any], payload: Any
) -> None:
    """Else the two ends of one function would not understand each other."""
    handle = handle_of(function)
    call = handle.call(*values, **named)
    assert isinstance(call.payload, msgspec.Raw)
    assert msgspec.json.decode(call.payload) == payload
    bound = handle.handler.binder.arguments(call.payload)
    names = handle.handler.binder.positional
    assert bound.items() >= {**dict(zip(names, values, strict=False)), **named}.items()


@pytest.mark.parametrize(
    ("function", "values", "named", "reason"),
    [
        (plain, (3, datetime(2026, 1, 1, tzinfo=UTC)), {}, "payload/to: expected `str`"),
        (struct, (Order("1", "2"),), {}, "payload/cents: expected `int`"),  # type: ignore[arg-type]
        (typed_dict, ({},), {}, "payload: object missing required field `sku`"),
        (model, ({"name": "Ada"},), {}, "payload/age: field required"),
        (path, (3,), {}, "payload/path: "),
        (optional, (object(),), {}, "payload: object is not JSON"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_where_it_is_submitted(
    function: Callable[..., Any], values: tuple[Any, ...], named: dict[str, Any], reason: str
) -> None:
    """The worker finds it too, but then it is a dead letter, and its submitter is gone."""
    with pytest.raises(InvalidPayload) as refused:
        handle_of(function).call(*values, **named)
    assert str(refused.value).startswith(reason)


@pytest.mark.parametrize(
    ("values", "named", "reason"),
    [
        ((), {}, "missing a required argument: 'to'"),
        (("a", 1, 1, 1), {}, "too many positional arguments"),
        (("a",), {"to": "b", "at": 1}, "multiple values for argument 'to'"),
        (("a",), {"at": 1, "copys": 2}, "got an unexpected keyword argument 'copys'"),
    ],
)
def test_a_call_that_does_not_fit_the_function_is_a_type_error(
    values: tuple[Any, ...], named: dict[str, Any], reason: str
) -> None:
    """The words of Python are those that its users know."""
    with pytest.raises(TypeError, match=reason):
        handle_of(plain).call(*values, **named)


def connection(ctx: Context, connection: socket.socket) -> None: ...


def callback(ctx: Context, then: Callable[[], int]) -> None: ...


def deep(ctx: Context, items: dict[str, list[socket.socket]]) -> None: ...


def returned(ctx: Context) -> Iterator[int]: ...  # type: ignore[empty-body]


class Session:
    def __init__(self, value: str) -> None: ...


def custom(ctx: Context, session: Session | None = None) -> None: ...


@pytest.mark.parametrize("function", [connection, callback, deep, returned, custom])
def test_a_type_that_cannot_be_carried_is_refused_at_the_decoration(
    function: Callable[..., Any],
) -> None:
    """At the first task it is too late: the program that would have to change is in production."""
    with pytest.raises(ConfigurationError, match=rf"the handler {function.__name__} .*carried"):
        handle_of(function)


def test_an_annotation_that_is_defined_further_down_is_resolved_at_its_first_use() -> None:
    """Annotations as text name what the decorator cannot see yet."""

    def later(ctx: Context, note: "Note") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    later.__globals__.pop("Note", None)
    handle = handle_of(later)
    later.__globals__["Note"] = Order
    try:
        call = handle.call(Order("1", 2))
    finally:
        del later.__globals__["Note"]
    assert call.type == "a.b"


async def test_defaults_live_on_the_handle_and_options_replace_them(
    tasks: TaskRegistry, pool: str
) -> None:
    """Retry rules repeated at each of forty submits drift apart."""

    @tasks.task("send", priority=7, retry={"max_attempts": 2}, timeout_s=9)
    async def send(ctx: Context, to: str) -> None: ...

    usual = await send.after(FAR_S).asubmit("a")
    assert (usual.priority, usual.max_attempts, usual.timeout_s) == (7, 2, 9.0)
    noon = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    other = await send.after(timedelta(hours=1)).at(noon).options(priority=1, pool="x").asubmit("a")
    assert (other.priority, other.run_at, other.target) == (1, noon, {"pool": "x"})
    for task in (usual, other):
        await task.cancel()


async def test_a_client_of_ones_own_submits_the_calls_of_handles(
    duly: RunningDuly, client: AsyncClient
) -> None:
    """A program that talks to two installations has to say to which."""
    handle = TaskRegistry().task("a.b")(optional)
    far = handle.after(FAR_S)
    one = await client.submit(far.call(size=4), priority=8)
    assert (one.type, one.priority) == ("a.b", 8)
    stored = await client.submit_many([far.call(), {"type": "c.d", "delay_s": FAR_S}])
    assert [each.type for each in stored] == ["a.b", "c.d"]
    with Client(duly.url, duly.ready["api_key"]) as plain_client:
        for task in (one, *stored):
            assert plain_client.cancel(task.id).state == "CANCELLED"


def test_a_worker_is_a_registry_whose_tasks_go_to_its_first_pool() -> None:
    """A handle whose tasks go where its own worker never looks is a trap."""
    worker = Worker(pools=["mails", "others"])
    handle = worker.task("a.b")(optional)
    assert handle.call().options == {"pool": "mails"}
    assert handle(None, size=3) is None
    with pytest.raises(ConfigurationError, match="two handlers"):
        worker.task("a.b")(nothing)
    with pytest.raises(ConfigurationError, match="two handlers"):
        worker.include(Worker(), *[registry_of("a.b")])


def registry_of(name: str) -> TaskRegistry:
    registry = TaskRegistry()
    registry.task(name)(nothing)
    return registry


@pytest.mark.slow
async def test_a_decorated_function_runs_in_a_process(
    client: AsyncClient, pool: str, make_worker: Callable[..., Worker]
) -> None:
    """In the function's place its module has the handle, and a process looks there."""
    worker = make_worker(processes=1)
    worker.include(computing.tasks)
    async with at_work(worker):
        task = await client.submit(computing.double.options(pool=pool).call(21))
        assert await task.result(WAIT_S) == 42


async def test_shared_clients_are_closed_with_their_loop(duly: RunningDuly) -> None:
    """A warning about an open session at the end of each program hides the ones that matter."""
    tasks = TaskRegistry(url=duly.url, api_key=duly.ready["api_key"])
    handle = tasks.task("a.b")(optional)

    async def submit() -> HttpPool:
        task = await handle.after(FAR_S).asubmit()
        await task.cancel()
        opened = shared_async_client(tasks.url, tasks.api_key).connection.opened
        assert opened is not None
        assert opened.kept
        return opened

    opened = await asyncio.to_thread(asyncio.run, submit())
    assert opened.kept == []
    await asyncio.to_thread(forget_shared_clients)


async def test_a_handle_is_told_of_the_end_of_another_ones_task(
    tasks: TaskRegistry, make_worker: Callable[..., Worker]
) -> None:
    """A caller that has a handle would have to say its type and pool again, and mistype them."""
    ends: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    @tasks.task("order.paid")
    async def on_paid(ctx: Context, payload: dict[str, Any]) -> None:
        ends.put_nowait(payload)

    @tasks.task("order.pay")
    async def pay(ctx: Context, order: int) -> dict[str, int]:
        return {"receipt": order}

    worker = make_worker()
    worker.include(tasks)
    async with at_work(worker):
        task = await pay.options(callback=on_paid).asubmit(7)
        end = await asyncio.wait_for(ends.get(), WAIT_S)
    assert end == {
        "task": task.id,
        "type": "order.pay",
        "state": "COMPLETED",
        "result": {"receipt": 7},
    }
