"""The wire carries every message as it is and refuses what it does not know; queues are bounded."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import msgspec
import numpy as np
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from espalier.runtime.errors import LaunchError
from espalier.runtime.ipc import orders, to_scheduler
from espalier.runtime.ipc.sockets import MAX_QUEUED_MESSAGES, Broadcast, Context, Mailbox, Postbox
from espalier.runtime.ipc.to_scheduler import Abort, Submit
from espalier.runtime.ipc.wire import Wire
from espalier.runtime.messages import (
    Choice,
    Ebnf,
    JsonSchema,
    LogprobOptions,
    Regex,
    TokenIds,
    TokenizedRequest,
)
from espalier.runtime.sampling.params import SamplingParams

DEADLINE_S = 10.0
CONSTRAINTS = st.sampled_from(
    [None, JsonSchema("{}"), Regex("a+"), Ebnf('root ::= "a"'), Choice(("a", "b"))]
)


@given(
    arrays(np.int32, st.integers(0, 40), elements=st.integers(0, 2**31 - 1)),
    st.text(max_size=8),
    CONSTRAINTS,
    st.integers(-(2**63), 2**63 - 1),
)
def test_requests_cross_unchanged(ids: TokenIds, text: str, constraint: object, seed: int) -> None:
    request = TokenizedRequest(
        rid=text,
        input_ids=ids,
        sampling=SamplingParams(stop=(text,), seed=seed, logit_bias={3: -1.5}),
        constraint=constraint,  # type: ignore[arg-type]
        logprobs=LogprobOptions(prompt_start=0, top=2),
        namespace=("salt", text),
    )
    arrived = to_scheduler.WIRE.decode(to_scheduler.WIRE.encode(Submit(4, (request,))))
    assert isinstance(arrived, Submit) and arrived.epoch == 4
    [copy] = arrived.requests
    assert copy.input_ids.dtype == np.int32
    np.testing.assert_array_equal(copy.input_ids, ids)
    same = msgspec.structs.replace(copy, input_ids=ids)
    assert all(
        getattr(same, name) == getattr(request, name)
        for name in request.__struct_fields__
        if name != "input_ids"
    )


def test_an_array_travels_as_its_bytes() -> None:
    ids = np.arange(1000, dtype=np.int32)
    request = TokenizedRequest(rid="a", input_ids=ids, sampling=SamplingParams())
    assert ids.tobytes() in to_scheduler.WIRE.encode(Submit(0, (request,)))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        pickle.dumps({"epoch": 0}),
        msgspec.msgpack.encode({"type": "Run", "epoch": 0}),
        msgspec.msgpack.encode({"type": "Abort", "epoch": "0", "rid": "a"}),
        msgspec.msgpack.encode({"type": "Abort", "rid": "a"}),
        msgspec.msgpack.encode({"type": "Submit", "epoch": 0, "requests": [{"rid": "a"}]}),
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        to_scheduler.WIRE.decode(data)


def test_only_known_types_are_sent() -> None:
    wire: Wire[object] = Wire(object)
    with pytest.raises(TypeError, match="complex"):
        wire.encode(1j)
    with pytest.raises(AssertionError):
        wire.encode(np.zeros(2, np.float64))


@pytest.fixture
def context() -> Iterator[Context]:
    context: Context = zmq.Context()
    yield context
    context.destroy(linger=0)


def test_messages_arrive_in_order_and_before_the_box_is_bound(
    context: Context, tmp_path: Path
) -> None:
    postbox = Postbox(context, tmp_path / "box", to_scheduler.WIRE)
    for i in range(100):
        assert postbox.try_send(Abort(0, str(i)))
    mailbox = Mailbox(context, tmp_path / "box", to_scheduler.WIRE)
    got = [mailbox.receive(DEADLINE_S) for _ in range(100)]
    assert got == [Abort(0, str(i)) for i in range(100)]
    assert mailbox.receive(0.0) is None and mailbox.receive_ready() is None


def test_a_full_queue_refuses_at_once_and_a_send_gives_up_when_told(
    context: Context, tmp_path: Path
) -> None:
    postbox = Postbox(context, tmp_path / "nobody", to_scheduler.WIRE)
    sent = 0
    while postbox.try_send(Abort(0, "a")):
        sent += 1
    assert sent == MAX_QUEUED_MESSAGES
    asked: list[int] = []

    def give_up() -> bool:
        asked.append(1)
        return len(asked) == 3

    assert not postbox.send(Abort(0, "b"), give_up)
    assert len(asked) == 3


def test_a_mailbox_bound_again_is_found_again(context: Context, tmp_path: Path) -> None:
    """A new process takes the place of a dead one, at the same path. What was sent before the
    death was noticed is lost with it, so the ping is sent until it arrives."""
    postbox = Postbox(context, tmp_path / "box", orders.WIRE)
    for number in range(3):
        mailbox = Mailbox(context, tmp_path / "box", orders.WIRE)
        deadline = monotonic() + DEADLINE_S
        while mailbox.receive(0.1) != orders.Ping(number):
            assert monotonic() < deadline, "the mailbox was not found again"
            postbox.try_send(orders.Ping(number))
        mailbox.close()


def test_a_broadcast_waits_for_nobody(context: Context, tmp_path: Path) -> None:
    """Without subscribers, and with one that reads nothing, all sends return; what the reader
    gets then is a beginning of what was sent, in order."""
    endpoint = f"ipc://{tmp_path}/events"
    broadcast = Broadcast(context, endpoint, orders.WIRE)
    broadcast.send(orders.Ping(-1))
    reader = context.socket(zmq.SUB)
    reader.set_hwm(10)
    reader.subscribe(b"")
    reader.connect(endpoint)
    while not reader.poll(10):
        broadcast.send(orders.Ping(0))
    padding = "x" * 10_000
    for number in range(1, 5 * MAX_QUEUED_MESSAGES):
        broadcast.send(orders.NewEpoch(number, padding))
    got: list[int] = []
    while reader.poll(1000):
        order = orders.WIRE.decode(reader.recv())
        if isinstance(order, orders.NewEpoch):
            got.append(order.epoch)
    assert got == sorted(got) and 0 < len(got) < 5 * MAX_QUEUED_MESSAGES - 1


@pytest.mark.parametrize("name", ["{}/events", "@espalier-test-{}"])
def test_a_broadcast_that_is_closed_leaves_no_file(
    context: Context, tmp_path: Path, name: str
) -> None:
    broadcast = Broadcast(context, "ipc://" + name.format(tmp_path), orders.WIRE)
    assert [*tmp_path.iterdir()] == ([] if name[0] == "@" else [tmp_path / "events"])
    broadcast.close()
    assert not [*tmp_path.iterdir()]


def test_a_broadcast_that_cannot_be_bound_says_where(context: Context) -> None:
    with pytest.raises(LaunchError, match="ipc:///nowhere/at/all"):
        Broadcast(context, "ipc:///nowhere/at/all", orders.WIRE)
