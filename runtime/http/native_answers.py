"""Answers of `/generate` in SGLang's form, whole and as events; knows no sockets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from ..completion import Completion, complete
from ..messages import FinishReason, GrammarReport, TokenLogprob
from ..programs.backend import GenerateChunk
from ..tokenizer.tokenizer import Tokenizer
from .native_calls import Ask
from .outputs import matched_text

Json = dict[str, object]
Logprobs = dict[str, list[object]]


@dataclass(slots=True)
class Shown:
    """What an answer shows of its choice: all of it, or in a stream of deltas a part."""

    text: str = ""
    ids: list[int] = field(default_factory=list[int])
    logprobs: Logprobs = field(default_factory=Logprobs)
    forced: list[int] = field(default_factory=list[int])  # places in `ids`

    def extend(self, other: Shown) -> None:
        self.text += other.text
        self.forced += [len(self.ids) + place for place in other.forced]
        self.ids += other.ids
        for side, entries in other.logprobs.items():
            self.logprobs.setdefault(side, []).extend(entries)


class Answers:
    """Writes the answers to one prompt's choices."""

    def __init__(self, ask: Ask, tokenizer: Tokenizer) -> None:
        self._ask, self._tokenizer = ask, tokenizer

    def shown(self, output: Completion | GenerateChunk) -> Shown:
        """What `output` has."""
        logprobs = self._logprobs(output.prompt_logprobs, output.logprobs)
        return Shown(output.text, list(output.ids), logprobs, list(output.forced))

    def whole(self, completion: Completion, elapsed_s: float) -> Json:
        """A choice that has ended, `elapsed_s` after its arrival."""
        return self.last(self.shown(completion), completion, elapsed_s)

    def last(self, shown: Shown, end: Completion, elapsed_s: float) -> Json:
        """The last answer of a choice, which ended as `end` says."""
        usage = end.usage
        meta: Json = {
            "id": self._ask.rid,
            "finish_reason": _finish(end.finish, usage.completion_tokens),
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
            "forced_tokens": usage.forced_tokens,
            "num_retractions": usage.num_retractions,
            "kept_tokens": end.num_kept_tokens,
            "e2e_latency": elapsed_s,
            **_grammar(end.grammar),
            **_of_tokens(shown),
        }
        stop = matched_text(end.finish, self._tokenizer) if self._ask.no_stop_trim else ""
        return {"text": shown.text + stop, "output_ids": shown.ids, "meta_info": meta}

    def part(self, shown: Shown, num_tokens: int) -> Json:
        """An answer of a choice that goes on and has `num_tokens` by now."""
        meta: Json = {
            "id": self._ask.rid,
            "finish_reason": None,
            "prompt_tokens": len(self._ask.call.input_ids),
            "completion_tokens": num_tokens,
            **_of_tokens(shown),
        }
        return {"text": shown.text, "output_ids": shown.ids, "meta_info": meta}

    def _logprobs(
        self,
        prompt: Sequence[TokenLogprob] | None,
        output: Sequence[TokenLogprob] | None,
    ) -> Logprobs:
        """Nothing unless they were asked for; alternatives only if some were."""
        options = self._ask.call.logprobs
        if options is None:
            return {}
        by_side = {"input": prompt or (), "output": output or ()}
        found: Logprobs = {
            f"{side}_token_logprobs": [self._entry(p.logprob, p.token_id) for p in positions]
            for side, positions in by_side.items()
        }
        if options.top:
            for side, positions in by_side.items():
                found[f"{side}_top_logprobs"] = [self._top(p) for p in positions]
        return found

    def _top(self, position: TokenLogprob) -> list[list[object]] | None:
        """The position's alternatives; None where there is nothing to choose from."""
        if position.logprob is None:
            return None
        return [self._entry(logprob, token_id) for token_id, logprob in position.top]

    def _entry(self, logprob: float | None, token_id: int) -> list[object]:
        text: str | None = None
        if self._ask.text_in_logprobs:
            text = self._tokenizer.token_bytes[token_id].decode("utf-8", "replace")
        return [logprob, token_id, text]


class StreamedChoice:
    """One choice of a stream: its events show all so far, or with `deltas` what is new."""

    def __init__(self, answers: Answers, *, deltas: bool) -> None:
        self._answers, self._deltas = answers, deltas
        self._so_far = Shown()
        self._num_tokens = 0

    def event(self, chunk: GenerateChunk, elapsed_s: float) -> Json | None:
        """The event for `chunk`; None if there is nothing to tell yet."""
        shown = self._answers.shown(chunk)
        self._num_tokens += len(chunk.ids)
        if not self._deltas:
            self._so_far.extend(shown)
            shown = self._so_far
        if chunk.finish is not None:
            return self._answers.last(shown, complete(chunk), elapsed_s)
        if not (chunk.text or chunk.ids or chunk.prompt_logprobs):
            return None
        return self._answers.part(shown, self._num_tokens)


def _of_tokens(shown: Shown) -> Json:
    """What there is to tell of each of the tokens shown."""
    return {**({"forced": shown.forced} if shown.forced else {}), **shown.logprobs}


def _grammar(report: GrammarReport | None) -> Json:
    return {} if report is None else {"grammar": msgspec.to_builtins(report)}


def _finish(finish: FinishReason, num_tokens: int) -> Json:
    match finish.kind:
        case "length":
            cut = {"incomplete": True} if finish.incomplete else {}
            return {"type": "length", "length": num_tokens, **cut}
        case "abort":
            return {"type": "abort", "message": finish.message, "status_code": None}
        case _:
            return {"type": finish.kind, "matched": finish.matched}
