"""What one row of a settled step means for its request; changes the request, sends nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..grammar.jumping import MAX_CONTEXT, Jumper
from ..messages import FinishReason, TokenLogprob, TokenOutput
from ..sampling.sampler import NO_TOKEN, NOT_FINITE, Sampled
from .ends import End
from .request import Request
from .step import StepRow


@dataclass(frozen=True, slots=True)
class Settlement:
    """What a row gave: news for the client, the request's end if this was it.

    `num_forced` ids behind the sampled one are certain; `forced` are the places in `ids` of all
    that no step has sampled. `respelled`: the sampled one has become another. `poisoned`: its
    logits were NaN, so the KV that it was computed from is not to be trusted.
    """

    ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    end: End | None = None
    num_forced: int = 0
    forced: tuple[int, ...] = ()
    respelled: bool = False
    poisoned: bool = False

    @property
    def jumped(self) -> bool:
        """More is known than what was sampled."""
        return self.num_forced > 0 or self.respelled

    def output(self, request: Request) -> TokenOutput | None:
        """The message for the client, if there is any news; not for a final one."""
        if not self.ids and self.prompt_logprobs is None:
            return None
        return TokenOutput(
            rid=request.message.rid,
            choice=request.message.choice,
            ids=self.ids,
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
            forced=self.forced,
        )


NO_NEWS = Settlement()


def settle_row(
    request: Request,
    row: StepRow,
    sampled: Sampled | None,
    computed: list[TokenLogprob],
    jumper: Jumper | None,
) -> Settlement:
    """Take the sampled token of a request's row, if it has one, and what is certain to follow it.
    computed: the row's prompt log-probabilities."""
    if any(entry.logprob is None or not math.isfinite(entry.logprob) for entry in computed):
        return _failed(request, NOT_FINITE)
    _collect_prompt_logprobs(request, row, computed)
    prompt_logprobs = _finished_prompt_logprobs(request)
    if sampled is None:
        end = None
        if request.message.sampling.max_new_tokens == 0 and row.end == request.prompt_len:
            end = request.ends.so_far(_length_reason(request))
        return Settlement(prompt_logprobs=prompt_logprobs, end=end)
    if sampled.failure is not None:
        return _failed(request, sampled.failure)
    request.append(sampled.token_id)
    end = _end_after(request, sampled.token_id)
    taken = _Taken() if end is not None else _take_forced(request, jumper, may_respell=True)
    opening, request.opening = request.opening, ()
    own = _token_logprob(sampled)
    if taken.respelled is not None:
        own = TokenLogprob(taken.respelled, None)
    ids = (*opening, own.token_id, *taken.ids)
    return Settlement(
        ids=ids,
        logprobs=_logprobs(request, opening, (own,), taken.ids),
        prompt_logprobs=prompt_logprobs,
        end=end or taken.end,
        num_forced=len(taken.ids),
        forced=(*range(len(opening)), *range(len(opening) + 1, len(ids))),
        respelled=taken.respelled is not None,
    )


def open_output(request: Request, jumper: Jumper | None) -> End | None:
    """What a new request's output begins with for certain, before anything is computed; its end
    if that is all. The client is told with the first token that is sampled, or with the end."""
    taken = _take_forced(request, jumper, may_respell=False)
    request.opening, request.num_opening = taken.ids, len(taken.ids)
    return taken.end


def with_opening(request: Request, news: Settlement) -> Settlement:
    """For a last message: the news, and before it what the client has not been told yet."""
    opening, request.opening = request.opening, ()
    if not opening:
        return news
    assert not news.ids, "a sampled token comes with the opening"
    logprobs = _logprobs(request, opening, (), ())
    return replace(news, ids=opening, logprobs=logprobs, forced=tuple(range(len(opening))))


@dataclass(frozen=True, slots=True)
class _Taken:
    """Tokens that were certain, and the end that was among them, if one was.

    respelled: what the last token before them has become, if it has.
    """

    ids: tuple[int, ...] = ()
    end: End | None = None
    respelled: int | None = None


def _take_forced(request: Request, jumper: Jumper | None, *, may_respell: bool) -> _Taken:
    """Take the tokens that are certain to come next, up to an end if there is one among them."""
    guide = request.guide
    if jumper is None or guide is None:
        return _Taken()
    first = max(request.prompt_len, request.num_ids - MAX_CONTEXT)
    outputs: list[int] = request.ids[first : request.num_ids].tolist()
    left = request.message.sampling.max_new_tokens - request.num_outputs
    jump = jumper.run(guide, outputs, left, may_respell=may_respell)
    if jump.ahead is not None:
        request.guide = jump.ahead
    ids, respelled = jump.ids, None
    if jump.respells:
        respelled, ids = ids[0], ids[1:]
        request.respell(respelled)
        pieces = jump.accepted[: len(jump.accepted) - len(ids)]
        if jump.ahead is None and not all(map(guide.accept, pieces)):
            message = f"the last token was respelled as {respelled} but the grammar refuses it"
            reason = FinishReason(kind="error", message=message)
            return _Taken((), request.ends.so_far(reason), respelled)
        if end := request.ends.respell(respelled):
            return _Taken((), end, respelled)
    end_after = _end_after if jump.ahead is None else _end_at
    for count, token_id in enumerate(ids, 1):
        request.force(token_id)
        if end := end_after(request, token_id):
            return _Taken(ids[:count], end, respelled)
    return _Taken(ids, None, respelled)


def _logprobs(
    request: Request,
    opening: Sequence[int],
    own: tuple[TokenLogprob, ...],
    forced: Sequence[int],
) -> tuple[TokenLogprob, ...] | None:
    """Nothing was predicted of what was forced."""
    options = request.message.logprobs
    if options is None or not options.output:
        return None
    return (
        *(TokenLogprob(token_id, None) for token_id in opening),
        *own,
        *(TokenLogprob(token_id, None) for token_id in forced),
    )


def _failed(request: Request, why: str) -> Settlement:
    """That no token is left is what the request asked for itself: its constraint, its bans."""
    reason = FinishReason(kind="error", message=why, bad_request=why == NO_TOKEN)
    return Settlement(end=request.ends.so_far(reason), poisoned=why == NOT_FINITE)


def _end_after(request: Request, token_id: int) -> End | None:
    """A grammar ends where its stop token is accepted, whatever else the caller asked for."""
    guide = request.guide
    if guide is not None:
        if not guide.accept(token_id):
            message = f"token {token_id} was sampled under a mask but the grammar refuses it"
            return request.ends.so_far(FinishReason(kind="error", message=message))
        if guide.is_terminated:
            return request.ends.so_far(FinishReason(kind="stop", matched=token_id))
    return _end_at(request, token_id)


def _end_at(request: Request, token_id: int) -> End | None:
    """Of a token that the grammar, if there is one, goes on from."""
    end = request.ends.push(token_id)
    if end is not None and end.reason.kind == "length":
        return replace(end, reason=_length_reason(request))
    return end


def _length_reason(request: Request) -> FinishReason:
    """Grammars that are not the caller's own are closed in time."""
    guide = request.guide
    return FinishReason(kind="length", incomplete=guide is not None and not guide.is_completed)


def _token_logprob(sampled: Sampled) -> TokenLogprob:
    return TokenLogprob(sampled.token_id, sampled.logprob, sampled.top)


def _collect_prompt_logprobs(request: Request, row: StepRow, computed: list[TokenLogprob]) -> None:
    """Keep what is new: tokens that are computed again give entries that are there already."""
    wanted = request.next_prompt_logprob
    if row.prompt_logprobs is None or wanted is None:
        return
    first = row.start + row.prompt_logprobs.first + 1
    request.prompt_logprobs.extend(computed[max(0, wanted - first) :])


def _finished_prompt_logprobs(request: Request) -> tuple[TokenLogprob, ...] | None:
    """All of them, once: with the row that completes them."""
    options = request.message.logprobs
    if options is None or options.prompt_start is None or request.prompt_logprobs_sent:
        return None
    if request.next_prompt_logprob is not None:
        return None
    request.prompt_logprobs_sent = True
    return tuple(request.prompt_logprobs)
