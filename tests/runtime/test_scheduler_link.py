"""Epochs: what is open belongs to one, and nothing of an older one gets through."""

from __future__ import annotations

from queue import SimpleQueue

import numpy as np
import pytest

from espalier.runtime.ipc.orders import NewEpoch
from espalier.runtime.ipc.to_detokenizer import TextStart, TokenBatch
from espalier.runtime.ipc.to_scheduler import Abort, FlushCache, ReportStats, SendSnapshot, Submit
from espalier.runtime.ipc.to_tokenizer import CacheFlushed, StatsReport
from espalier.runtime.messages import (
    AbortRequest,
    FinishReason,
    SubmitRequests,
    TokenizedRequest,
    TokenOutput,
)
from espalier.runtime.sampling.params import SamplingParams
from espalier.runtime.scheduler import control
from espalier.runtime.scheduler.control import AbortAll, Message
from espalier.runtime.scheduler.link import SchedulerLink
from espalier.runtime.scheduler.stats import SchedulerStats


class Ends:
    """A link, and what comes out of its ends."""

    def __init__(self, epoch: int = 1) -> None:
        self.inbox: SimpleQueue[Message] = SimpleQueue()
        self.batches: list[TokenBatch] = []
        self.answers: list[CacheFlushed | StatsReport] = []
        self.link = SchedulerLink(epoch, self.inbox, self.batches.append, self.answers.append)

    def messages(self) -> list[Message]:
        return [self.inbox.get_nowait() for _ in range(self.inbox.qsize())]


@pytest.fixture
def ends() -> Ends:
    return Ends()


def request(rid: str, stop: tuple[str, ...] = ()) -> TokenizedRequest:
    return TokenizedRequest(
        rid=rid, input_ids=np.array([1], np.int32), sampling=SamplingParams(stop=stop, seed=0)
    )


def final(rid: str) -> TokenOutput:
    return TokenOutput(rid=rid, finish=FinishReason(kind="length"))


def test_requests_go_in_and_their_starts_come_out_with_the_first_outputs(ends: Ends) -> None:
    requests = (request("a", ("x",)), request("b"))
    ends.link.take(Submit(1, requests))
    assert ends.messages() == [SubmitRequests(requests)]
    ends.link.send_outputs([TokenOutput(rid="a", ids=(7,))])
    ends.link.send_outputs([final("b")])
    assert ends.batches == [
        TokenBatch(
            1,
            (TextStart("a", 0, ("x",)), TextStart("b", 0, ())),
            (TokenOutput(rid="a", ids=(7,)),),
        ),
        TokenBatch(1, (), (final("b"),)),
    ]


def test_messages_of_an_older_epoch_are_dropped(ends: Ends) -> None:
    ends.link.take(Submit(0, (request("old"),)))
    ends.link.take(Abort(0, "old"))
    ends.link.take(FlushCache(0, 1))
    ends.link.take(ReportStats(0, 2))
    ends.link.take(NewEpoch(0, ""))
    assert ends.messages() == []
    ends.link.send_outputs([final("old")])
    assert ends.batches == []


@pytest.mark.parametrize("by_order", [True, False])
def test_a_newer_epoch_aborts_everything_and_silences_it(ends: Ends, by_order: bool) -> None:
    """It begins with the launcher's order, or with the first message that knows of it."""
    ends.link.take(Submit(1, (request("a"),)))
    ends.messages()
    ends.link.take(NewEpoch(2, "x") if by_order else Submit(2, (request("b"),)))
    first, *rest = ends.messages()
    assert isinstance(first, AbortAll)
    assert [type(message) for message in rest] == ([] if by_order else [SubmitRequests])
    ends.link.send_outputs([TokenOutput(rid="a", ids=(7,)), final("a")])
    outputs = [output for batch in ends.batches for output in batch.outputs]
    starts = [start.rid for batch in ends.batches for start in batch.starts]
    assert outputs == [] and "a" not in starts


def test_nothing_follows_a_final_output(ends: Ends) -> None:
    ends.link.take(Submit(1, (request("a"),)))
    ends.link.send_outputs([final("a")])
    ends.link.send_outputs([TokenOutput(rid="a", ids=(7,))])
    assert len(ends.batches) == 1


def test_answers_carry_the_epoch_and_call_of_their_question(ends: Ends) -> None:
    ends.link.take(FlushCache(1, 5))
    ends.link.take(ReportStats(1, 6))
    ends.link.take(NewEpoch(2, "x"))
    flush, report, _ = ends.messages()
    assert isinstance(flush, control.FlushCache) and isinstance(report, control.ReportStats)
    flush.reply.set_result(9)
    report.reply(SchedulerStats(num_running=3))
    assert ends.answers == [
        CacheFlushed(1, 5, 9),
        StatsReport(1, 6, SchedulerStats(num_running=3)),
    ]


def test_a_snapshot_is_asked_for_in_its_own_epoch(ends: Ends) -> None:
    ends.link.take(SendSnapshot(0))
    ends.link.take(SendSnapshot(1))
    assert ends.messages() == [control.SendSnapshot()]


def test_an_abort_names_one_request(ends: Ends) -> None:
    ends.link.take(Abort(1, "a"))
    assert ends.messages() == [AbortRequest("a")]
