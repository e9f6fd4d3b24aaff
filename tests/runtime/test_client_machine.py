"""Random lives of a client and a scheduler's link, with messages that wait as long as they like.

Everything between processes is a queue here: messages move only by a rule, so each one may
come before or after any other of another queue. Processes die and are replaced; what they had
sent or not read yet may be lost. Whatever happens, each choice has one final chunk, its tokens
come in order and once, and nothing of an older epoch is seen.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any, Literal, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from espalier.runtime.client import OpenCalls, RuntimeClient
from espalier.runtime.detokenizer.batches import BatchDetokenizer
from espalier.runtime.errors import InvalidRequest, Unavailable
from espalier.runtime.ipc.orders import NewEpoch, Serve
from espalier.runtime.ipc.to_detokenizer import TokenBatch
from espalier.runtime.ipc.to_scheduler import SchedulerNews
from espalier.runtime.ipc.to_tokenizer import TokenizerNews
from espalier.runtime.messages import AbortRequest, FinishReason, SubmitRequests, TokenOutput
from espalier.runtime.programs.backend import GenerateCall, GenerateChunk
from espalier.runtime.sampling.params import SamplingParams
from espalier.runtime.scheduler.control import AbortAll, FlushCache, Message, ReportStats
from espalier.runtime.scheduler.limits import RequestLimits
from espalier.runtime.scheduler.link import SchedulerLink
from espalier.runtime.scheduler.stats import SchedulerStats
from tests.inprocess import smollm2_tokenizer

T = TypeVar("T")
Key = tuple[str, int]
Role = Literal["tokenizer", "scheduler", "detokenizer"]

ROLES: tuple[Role, ...] = ("tokenizer", "scheduler", "detokenizer")
LIMITS = RequestLimits(context_len=64, pool_tokens=1000, vocab_size=1000)
MAX_OPEN = 6
NUM_FLUSHED = 7
ENDS = (FinishReason(kind="stop"), FinishReason(kind="length"), FinishReason(kind="error"))

picks = st.integers(0, 10**6)
counts = st.integers(1, 9)
losses = st.integers(0, 3)
moves = st.lists(st.integers(-3, 3), min_size=1, max_size=6)


class ManualLoop(asyncio.SelectorEventLoop):
    """Its clock stands still but for `now`."""

    now = 0.0

    def time(self) -> float:
        return self.now


class FakeScheduler:
    """Keeps the real one's promises to its channel: token after token, one final output each."""

    def __init__(self, link: Callable[[SimpleQueue[Message]], SchedulerLink]) -> None:
        self.inbox: SimpleQueue[Message] = SimpleQueue()
        self.link = link(self.inbox)
        self.running: dict[Key, int] = {}
        """How many tokens each request has had."""

    def step(self, moves: Sequence[int]) -> None:
        """A move is a number of tokens, negative if the output ends with them."""
        outputs: list[TokenOutput] = []
        while not self.inbox.empty():
            outputs += self._take(self.inbox.get())
        for key, move in zip(tuple(self.running), itertools.cycle(moves), strict=False):
            if move:
                outputs.append(self._output(key, abs(move), ENDS[-move % 3] if move < 0 else None))
        self.link.send_outputs(outputs)

    def _take(self, message: Message) -> list[TokenOutput]:
        match message:
            case SubmitRequests(requests):
                for request in requests:
                    assert (request.rid, request.choice) not in self.running
                    self.running[request.rid, request.choice] = 0
            case AbortRequest() | AbortAll():
                rid = message.rid if isinstance(message, AbortRequest) else None
                gone = [key for key in self.running if rid in (None, key[0])]
                return [self._output(key, 0, FinishReason(kind="abort")) for key in gone]
            case FlushCache(reply):
                reply.set_result(NUM_FLUSHED)
            case ReportStats(tell):
                tell(SchedulerStats(num_running=len(self.running)))
            case other:
                raise AssertionError(other)
        return []

    def _output(self, key: Key, count: int, finish: FinishReason | None) -> TokenOutput:
        start = self.running[key]
        self.running[key] = end = start + count
        if finish is not None:
            del self.running[key]
        ids = tuple(range(start, end))
        rid, choice = key
        num_text_bytes = 0 if finish is None else end
        return TokenOutput(
            rid=rid, choice=choice, ids=ids, finish=finish, num_text_bytes=num_text_bytes
        )


class FakeDetokenizer:
    """The detokenizer's process but for its mailboxes."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches = BatchDetokenizer(letter)

    def advance(self, epoch: int) -> None:
        if epoch > self.epoch:
            self.epoch = epoch
            self.batches.clear()


def letter(token_id: int) -> bytes:
    return bytes([ord("a") + token_id % 26])


@dataclass(eq=False)
class Group:
    """Calls that were opened together, and what has come of them."""

    calls: OpenCalls
    names: list[str | None]
    choices: list[int]
    epoch: int
    may_abort: bool = False
    ids: dict[tuple[int, int], list[int]] = field(default_factory=dict[tuple[int, int], list[int]])
    ends: dict[tuple[int, int], FinishReason] = field(
        default_factory=dict[tuple[int, int], FinishReason]
    )

    @property
    def num_running(self) -> int:
        return sum(self.choices) - len(self.ends)

    def read(self) -> None:
        while (item := self.calls.next_ready()) is not None:
            index, chunk = item
            self._take((index, chunk.choice), chunk)

    def _take(self, key: tuple[int, int], chunk: GenerateChunk) -> None:
        assert key not in self.ends, "output after the final one"
        ids = self.ids.setdefault(key, [])
        assert list(chunk.ids) == list(range(len(ids), len(ids) + len(chunk.ids)))
        assert chunk.text == b"".join(map(letter, chunk.ids)).decode()
        ids += chunk.ids
        if chunk.finish is not None:
            self.ends[key] = chunk.finish


class RuntimeMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = ManualLoop()
        self.epoch = 0
        self.has_room = True
        self.to_scheduler: deque[SchedulerNews] = deque()
        self.to_detokenizer: deque[TokenBatch] = deque()
        self.texts: deque[TokenizerNews] = deque()
        self.answers: deque[TokenizerNews] = deque()
        self.late: Role | None = None
        """Who does not read its orders as fast as the others."""
        self.orders: dict[Role, deque[NewEpoch | Serve]] = {role: deque() for role in ROLES}
        self.read_orders_while_sending = False
        self.scheduler = self.new_scheduler()
        self.detokenizer = FakeDetokenizer(0)
        self.client = self.new_client()
        self.recover()
        self.obey("tokenizer")

    @initialize(pick=picks)
    def choose(self, pick: int) -> None:
        """After a drain nothing much happens, so that most lives have none."""
        self.num_drains_left = 1 if pick % 4 == 1 else 0

    # -- processes -----------------------------------------------------------------------------

    def new_client(self) -> RuntimeClient:
        self.groups: list[Group] = []
        self.questions: list[asyncio.Task[int] | asyncio.Task[SchedulerStats]] = []
        self.client_epoch = self.epoch
        self.is_serving = self.is_refusing = self.is_closed = False
        return RuntimeClient(
            smollm2_tokenizer(), self.send, max_open_requests=MAX_OPEN, epoch=self.epoch
        )

    def new_scheduler(self) -> FakeScheduler:
        def link(inbox: SimpleQueue[Message]) -> SchedulerLink:
            return SchedulerLink(self.epoch, inbox, self.send_tokens, self.answers.append)

        return FakeScheduler(link)

    def send(self, news: SchedulerNews) -> bool:
        if self.has_room:
            self.to_scheduler.append(news)
        return self.has_room

    def send_tokens(self, batch: TokenBatch) -> None:
        """The scheduler's thread is here while the one that reads its mailboxes may go on."""
        while self.read_orders_while_sending and self.orders["scheduler"]:
            self.obey("scheduler")
        if batch.epoch == self.scheduler.link.epoch:
            self.to_detokenizer.append(batch)

    def within(self, act: Callable[[], T]) -> T:
        """Do `act` on the event loop, and what follows from it at once."""

        async def run() -> T:
            result = act()
            for _ in range(4):
                await asyncio.sleep(0)
            return result

        return self.loop.run_until_complete(run())

    @property
    def is_busy(self) -> bool:
        """Whether anything is on its way."""
        wires = (self.to_scheduler, self.to_detokenizer, self.texts, self.answers)
        is_asked = not self.scheduler.inbox.empty()
        return any((*wires, *self.orders.values(), is_asked))

    # -- what clients do -----------------------------------------------------------------------

    @precondition(lambda self: self.is_serving and self.client.num_open < MAX_OPEN)
    @rule(
        choices=st.lists(st.integers(1, 3), min_size=1, max_size=2),
        name=st.sampled_from([None, "a", "b"]),
    )
    def open(self, choices: list[int], name: str | None) -> None:
        calls = [
            GenerateCall(input_ids=[1, 2], sampling=SamplingParams(n=n, max_new_tokens=9))
            for n in choices
        ]
        names = [name, *[None] * (len(calls) - 1)]
        is_free = name is None or not any(name in g.names[:1] for g in self.open_first_calls())
        has_place = self.client.num_open + sum(choices) <= MAX_OPEN
        is_fine = self.is_serving and self.has_room and has_place and is_free
        num_open = self.client.num_open
        try:
            opened = self.loop.run_until_complete(self.client.open(calls, names))
        except (Unavailable, InvalidRequest):
            assert not is_fine and self.client.num_open == num_open
        else:
            assert is_fine and opened.num_open == sum(choices)
            self.groups.append(Group(opened, names, choices, self.client_epoch))

    def open_first_calls(self) -> list[Group]:
        """Groups of which the call that may have a name is open."""
        return [g for g in self.groups if sum(i == 0 for i, _ in g.ends) < g.choices[0]]

    @precondition(lambda self: self.groups)
    @rule(act=st.sampled_from(["abort", "abort", "all", "leave", "leave", "ask"]), pick=picks)
    def act(self, act: str, pick: int) -> None:
        match act:
            case "abort":
                self.abort("abc"[pick % 3])
            case "all":
                self.abort_all()
            case "leave":
                self.leave(pick)
            case _:
                self.ask(pick % 2 == 1)

    def abort(self, name: str) -> None:
        named = [group for group in self.open_first_calls() if name == group.names[0]]
        assert self.within(lambda: self.client.abort(name)) == bool(named)
        for group in named:
            group.may_abort = True

    def leave(self, pick: int) -> None:
        group = self.groups.pop(pick % len(self.groups))
        self.within(group.calls.close)
        self.within(group.calls.close)

    def abort_all(self) -> None:
        self.within(self.client.abort_all)
        for group in self.groups:
            group.may_abort = True

    def ask(self, ask_stats: bool) -> None:
        question = self.client.stats if ask_stats else self.client.flush_cache
        task = self.within(lambda: asyncio.ensure_future(question()))
        self.questions.append(task)  # type: ignore[arg-type]

    @precondition(lambda self: self.has_room and self.groups)
    @rule()
    def fill_up(self) -> None:
        """The scheduler's mailbox takes no more."""
        self.has_room = False

    def make_room(self) -> None:
        self.has_room = True
        self.loop.now += 0.1
        self.within(lambda: None)

    # -- what moves ----------------------------------------------------------------------------

    @precondition(lambda self: any(self.orders.values()))
    @rule(role=st.sampled_from(ROLES))
    def obey(self, role: Role) -> None:
        if not self.orders[role]:
            return
        order = self.orders[role].popleft()
        if role == "scheduler":
            assert isinstance(order, NewEpoch)
            self.scheduler.link.take(order)
        elif role == "detokenizer":
            self.detokenizer.advance(order.epoch)
        else:
            is_newer = order.epoch > self.client_epoch
            if is_newer:
                self.client_epoch, self.is_serving = order.epoch, False
            if isinstance(order, Serve):
                self.within(partial(self.client.serve, order.epoch, order.limits))
                if order.epoch == self.client_epoch and not self.is_refusing:
                    self.is_serving = True
            else:
                self.within(partial(self.client.new_epoch, order.epoch, order.why))
            if is_newer and not self.is_serving:
                self.open([1], None)  # in vain

    @precondition(lambda self: self.to_scheduler)
    @rule(count=counts)
    def scheduler_reads(self, count: int) -> None:
        for _ in range(min(count, len(self.to_scheduler))):
            self.scheduler.link.take(self.to_scheduler.popleft())

    @precondition(lambda self: self.scheduler.running or not self.scheduler.inbox.empty())
    @rule(moves=moves, read_orders=st.booleans())
    def step(self, moves: list[int], read_orders: bool) -> None:
        self.read_orders_while_sending = read_orders
        self.scheduler.step(moves)
        self.read_orders_while_sending = False

    @precondition(lambda self: self.to_detokenizer)
    @rule(count=counts)
    def detokenizer_reads(self, count: int) -> None:
        for _ in range(min(count, len(self.to_detokenizer))):
            batch = self.to_detokenizer.popleft()
            self.detokenizer.advance(batch.epoch)
            if batch.epoch == self.detokenizer.epoch:
                self.texts.append(self.detokenizer.batches.take(batch))

    @precondition(lambda self: self.texts or self.answers)
    @rule(count=counts, is_text=st.booleans())
    def client_reads(self, count: int, is_text: bool) -> None:
        wire = self.texts if is_text else self.answers
        for _ in range(min(count, len(wire))):
            self.within(partial(self.client.deliver, wire.popleft()))

    @precondition(lambda self: self.is_busy or self.scheduler.running)
    @rule(moves=moves)
    def flow(self, moves: list[int]) -> None:
        """Everything goes its way, but for the orders of who is late."""
        self.make_room()
        for role in ROLES:
            if role != self.late:
                self.obey(role)
        self.scheduler_reads(9)
        self.step(moves, False)
        self.detokenizer_reads(9)
        self.client_reads(9, True)
        self.client_reads(9, False)

    # -- life and death ------------------------------------------------------------------------

    @precondition(lambda self: self.client.num_open)
    @rule(role=st.sampled_from(ROLES), late=st.sampled_from(ROLES), unread=losses, unsent=losses)
    def kill(self, role: Role, late: Role, unread: int, unsent: int) -> None:
        """A new process takes its place at once; what it had not read, or not sent, is lost."""
        self.late = late
        self.epoch += 1
        for other in ROLES:
            self.orders[other].append(NewEpoch(self.epoch, f"the {role} process ended"))
        self.orders[role].clear()
        if role == "tokenizer":
            for question in self.questions:
                question.cancel()
            self.within(lambda: None)
            lose((self.texts, self.answers), unread, (self.to_scheduler,), unsent)
            self.client = self.new_client()
        elif role == "scheduler":
            lose((self.to_scheduler,), unread, (self.to_detokenizer, self.answers), unsent)
            self.scheduler = self.new_scheduler()
        else:
            lose((self.to_detokenizer,), unread, (self.texts,), unsent)
            self.detokenizer = FakeDetokenizer(self.epoch)

    @precondition(lambda self: Serve(self.epoch, LIMITS) not in self.orders["tokenizer"])
    @precondition(lambda self: not self.is_serving or self.client_epoch != self.epoch)
    @rule()
    def recover(self) -> None:
        """All processes are ready."""
        self.orders["tokenizer"].append(Serve(self.epoch, LIMITS))

    @precondition(
        lambda self: [type(o) for o in self.orders["tokenizer"]][-2:] == [NewEpoch, Serve]
    )
    @rule()
    def skip_to_serve(self) -> None:
        """Epochs only grow, so an order that names a newer one is enough."""
        orders = self.orders["tokenizer"]
        while len(orders) > 1:
            orders.popleft()

    @precondition(lambda self: self.num_drains_left)
    @rule(is_last=st.booleans())
    def drain(self, is_last: bool) -> None:
        self.num_drains_left -= 1
        self.is_refusing, self.is_serving = True, False
        if not is_last:
            self.client.refuse("the runtime is shutting down")
            return
        self.within(self.client.close)
        for group in self.groups:
            group.may_abort = True
        self.is_closed = True
        self.open([1, 1], None)  # in vain

    # -- what must hold ------------------------------------------------------------------------

    @invariant()
    def nothing_is_said_twice_and_everything_is_counted(self) -> None:
        for group in self.groups:
            group.read()
            for finish in group.ends.values():
                assert finish.kind != "abort" or group.may_abort
                assert not finish.lost or self.client_epoch > group.epoch
            assert group.calls.num_open == group.num_running
            assert not group.num_running or self.client_epoch == group.epoch
        assert self.client.num_open == sum(group.num_running for group in self.groups)
        if self.is_closed:
            assert self.client.num_open == 0
            assert all(question.done() for question in self.questions)

    def teardown(self) -> None:
        self.make_room()
        self.late = None
        while self.is_busy:
            self.flow([0])
        assert len(self.scheduler.running) == self.client.num_open
        while self.is_busy or self.scheduler.running:
            self.flow([-1])
        self.nothing_is_said_twice_and_everything_is_counted()
        assert self.client.num_open == 0 == self.detokenizer.batches.num_open
        for question in self.questions:
            assert question.done()
            assert isinstance(question.exception(), Unavailable) or question.result() is not None
        self.within(self.client.close)
        self.loop.close()


def lose(
    unread: Sequence[deque[Any]], num_unread: int, unsent: Sequence[deque[Any]], num_unsent: int
) -> None:
    for wire in unread:
        for _ in range(min(num_unread, len(wire))):
            wire.popleft()
    for wire in unsent:
        for _ in range(min(num_unsent, len(wire))):
            wire.pop()


TestRuntime = RuntimeMachine.TestCase
TestRuntime.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
