"""Requests that no well-behaved client sends, each with the answers that are in order.

A server must refuse them with words, or drop them; and go on as if they had not been.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.soak.calls import CHAT, NATIVE, TEXT, Json
from bench.soak.tiny_model import CONTEXT_LEN
from bench.soak.wire import Reply, head, posted

MAX_BODY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Attack:
    """What is sent.

    statuses: of answers that are in order. unfinished: none can come, and the sender leaves
    after a while. may_be_cut_off: the connection may be closed without an answer.
    """

    name: str
    data: bytes
    statuses: tuple[int, ...] = (400,)
    unfinished: bool = False
    may_be_cut_off: bool = False

    def is_answered_by(self, reply: Reply) -> bool:
        """Whether `reply` is in order; a stream on the native route may be refused in an event."""
        if reply.status == 200 and reply.body.startswith(b'data: {"error":'):
            return json.loads(reply.body.split(b"\n")[0][6:])["error"]["code"] in self.statuses
        return reply.status in self.statuses


_NOTHING: Json = {}
_BAD_SAMPLING: Sequence[Json] = (
    {"max_new_tokens": 10**30},
    {"max_new_tokens": -1},
    {"max_new_tokens": 1.5},
    {"max_new_tokens": "5"},
    {"max_new_tokens": CONTEXT_LEN * 2},
    {"temperature": -1},
    {"temperature": 1e308},
    {"top_p": 0},
    {"top_k": 0},
    {"n": 0},
    {"n": 2**31},
    {"stop": ["x"] * 1000},
    {"stop": "y" * 100_000},
    {"stop": "\ud800"},
    {"logit_bias": {"-5": 1.0}},
    {"logit_bias": {str(i): 1.0 for i in range(250)} | {"300": 1.0}},
    {"sampling_seed": 2**70},
    {"regex": "(((("},
    {"regex": "(?=x)y"},
    {"ebnf": "root ::= missing"},
    {"ebnf": "\x00"},
    {"json_schema": "{"},
    {"json_schema": {"type": "nothing"}},
    {"json_schema": {"$ref": "#/definitions/none"}},
    {"json_schema": {"type": "object", "not": _NOTHING}},
    {"regex": "a", "ebnf": 'root ::= "a"'},
    {"unknown": 1},
)
_BAD_BODIES: Sequence[tuple[str, Json]] = (
    (NATIVE, _NOTHING),
    (NATIVE, {"text": 5}),
    (NATIVE, {"text": ""}),
    (NATIVE, {"text": "a" * 200_000}),
    (NATIVE, {"text": "b" * (CONTEXT_LEN + 1)}),
    (NATIVE, {"text": "\ud800"}),
    (NATIVE, {"input_ids": [1] * (CONTEXT_LEN + 1)}),
    (NATIVE, {"input_ids": [-1]}),
    (NATIVE, {"input_ids": [2**40]}),
    (NATIVE, {"input_ids": [[1], "x"]}),
    (NATIVE, {"text": ["a"] * 5000}),
    (NATIVE, {"text": "a", "input_ids": [1]}),
    (NATIVE, {"text": "a", "lease": -1}),
    (NATIVE, {"text": "a", "priority": 2**80}),
    (NATIVE, {"text": ["a", "a"], "rid": ["same", "same"]}),
    (NATIVE, {"text": "a", "return_logprob": True, "top_logprobs_num": 10**6}),
    (TEXT, {"prompt": "a", "max_tokens": 10**9}),
    (TEXT, {"prompt": None}),
    (TEXT, {"prompt": "a", "best_of": 5}),
    (CHAT, {"messages": ()}),
    (CHAT, {"messages": [{"role": "user"}]}),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
    (CHAT, {"messages": "hello"}),
    (CHAT, {"messages": [{"role": "user", "content": "a"}], "tools": [_NOTHING]}),
    ("/abort_request", _NOTHING),
    ("/abort_request", {"rid": 7}),
    ("/detokenize", {"tokens": [10**9]}),
    ("/tokenize", {"prompt": 7}),
)


def attack(rng: random.Random) -> Attack:
    """One of them."""
    return rng.choice(_KINDS)(rng)


def _sampling(rng: random.Random) -> Attack:
    bad = rng.choice(_BAD_SAMPLING)
    body = {"text": "x", "sampling_params": bad, "stream": rng.random() < 0.5}
    return Attack(f"sampling {str(bad)[:60]}", posted(NATIVE, body))


def _body(rng: random.Random) -> Attack:
    path, body = rng.choice(_BAD_BODIES)
    return Attack(f"{path} {str(body)[:60]}", posted(path, body))


def _no_json(rng: random.Random) -> Attack:
    length = rng.randint(0, 3000)
    garbage = bytes(rng.randrange(256) for _ in range(length))
    nested = b"[" * 50_000
    schema = b'{"text":"a","sampling_params":{"json_schema":' + b'{"not":' * 5000 + b"{"
    data = rng.choice((garbage, nested, b'{"text": NaN}', b"\xff\xfe", schema, b'{"text":"\xff"}'))
    path = rng.choice((NATIVE, TEXT, CHAT))
    return Attack(f"no JSON {data[:20]!r}", head("POST", path, len(data)) + data)


def _deep_schema(rng: random.Random) -> Attack:
    depth = rng.choice((50, 500, 3000))
    inner = '{"type":"array","items":' * depth + '{"type":"null"}' + "}" * depth
    if rng.random() < 0.5:
        body = f'{{"text":"a","sampling_params":{{"json_schema":{inner},"max_new_tokens":1}}}}'
    else:
        text = json.dumps(inner)
        body = f'{{"text":"a","sampling_params":{{"json_schema":{text},"max_new_tokens":1}}}}'
    data = body.encode()
    return Attack(f"schema of depth {depth}", head("POST", NATIVE, len(data)) + data, (200, 400))


def _slow_grammar(rng: random.Random) -> Attack:
    deep = rng.randint(20, 60)
    regex = rng.choice((f"(([a-z]{{1,{deep}}}[0-9]{{1,{deep}}}){{1,{deep}}})", "a{1000000}"))
    sampling = {"regex": regex, "max_new_tokens": 2}
    body = posted(NATIVE, {"text": "x", "sampling_params": sampling})
    return Attack("slow grammar", body, (200, 400))


def _route(rng: random.Random) -> Attack:
    method = rng.choice(("GET", "PUT", "DELETE", "BREW", "POST"))
    path = rng.choice(("/nothing", "/v1/embeddings", "/../../etc/passwd", "/%00", "/" + "x" * 5000))
    return Attack(f"{method} {path[:20]}", head(method, path, 0), (400, 404, 405))


def _method(rng: random.Random) -> Attack:
    return Attack("GET /generate", head("GET", rng.choice((NATIVE, TEXT, CHAT)), 0), (405,))


def _too_large(rng: random.Random) -> Attack:
    length = MAX_BODY_BYTES + rng.randint(1, 1000)
    if rng.random() < 0.5:
        return Attack("says it is too large", head("POST", NATIVE, length), (413,))
    return Attack(
        "is too large", head("POST", TEXT, length) + b" " * length, (413,), may_be_cut_off=True
    )


def _many_headers(rng: random.Random) -> Attack:
    more = "".join(f"X-Header-{i}: {'v' * 900}\r\n" for i in range(rng.choice((20, 200))))
    return Attack("many headers", head("GET", "/health", 0, more), (200, 400), may_be_cut_off=True)


def _no_http(rng: random.Random) -> Attack:
    data = rng.choice(
        (
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
            b"HELO soak\r\n\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
            b"POST /generate HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
            b"POST /generate HTTP/1.1\r\nContent-Length: 1e9\r\n\r\n",
            b"POST /generate HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        )
    )
    return Attack(f"no HTTP {data[:30]!r}", data, may_be_cut_off=True)


def _unfinished(rng: random.Random) -> Attack:
    whole = posted(NATIVE, {"text": "half of it", "sampling_params": {"max_new_tokens": 5}})
    cut = rng.randrange(1, len(whole))
    return Attack("unfinished", whole[:cut], (), unfinished=True)


def _pipelined(rng: random.Random) -> Attack:
    """The first one is answered; the second is dropped, as docs/protocol.md says."""
    sampling = {"max_new_tokens": rng.randint(1, 60), "ignore_eos": True}
    one = posted(NATIVE, {"text": "one", "sampling_params": sampling})
    return Attack("pipelined", one + one, (200,))


_KINDS: Sequence[Callable[[random.Random], Attack]] = (
    *(_sampling, _sampling, _sampling, _body, _body, _body, _no_json, _deep_schema),
    *(_slow_grammar, _route, _method, _too_large, _many_headers, _no_http),
    *(_unfinished, _unfinished, _pipelined),
)
