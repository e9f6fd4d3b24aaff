"""Programs over HTTP give what they give on the runtime itself, errors and ends included."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from espalier.frontend_lang import (
    ProgramRun,
    ProgramState,
    function,
    gen,
    select,
    unconditional_likelihood_normalized,
)
from espalier.frontend_lang.backends.endpoint import RuntimeEndpoint
from espalier.runtime.completion import Completion, collect
from espalier.runtime.errors import EngineClosed, EspalierError, InvalidRequest, Unavailable
from espalier.runtime.messages import (
    Choice,
    Constraint,
    Ebnf,
    JsonSchema,
    LogprobOptions,
    Regex,
    Usage,
)
from espalier.runtime.programs.backend import GenerateCall, TextPiece
from espalier.runtime.programs.errors import BranchError
from espalier.runtime.programs.executor import ProgramHost
from espalier.runtime.programs.values import GenInfo, MetaInfo
from espalier.runtime.sampling.params import SamplingParams
from tests.inprocess import CONTEXT_LEN
from tests.served_client import ServedClient, served_client

pytestmark = pytest.mark.timeout(120, method="thread")


@pytest.fixture(scope="module")
def server() -> Iterator[ServedClient]:
    with served_client() as served:
        yield served


@pytest.fixture(scope="module")
def endpoint(server: ServedClient) -> Iterator[RuntimeEndpoint]:
    with RuntimeEndpoint(server.url) as found:
        yield found


@function
def interview(s: ProgramState, topic: str) -> list[str]:
    s.system("You are brief. 🌳")
    s.user(f"Talk of {topic}<|im_end|>, please.")
    s.assistant(gen("talk", max_tokens=12, return_logprob=True, top_logprobs_num=3))
    s.user("Is that so?")
    with s.assistant():
        s += "I say" + select("sure", [" yes", " no", " maybe not"])
        s += select("why", ["so", "thus"], choices_method=unconditional_likelihood_normalized)
        s += " because" + gen("reason", max_tokens=10, temperature=0.8, seed=5, stop=["a", "\n"])
    branches = s.fork(3)
    for index, branch in enumerate(branches):
        branch.user(f"Point {index}?")
        branch.assistant(gen("point", max_tokens=8, regex="[a-z ]{1,12}"))
    branches.join()
    s += gen("drafts", n=3, max_tokens=6, temperature=1.0, seed=7)
    s += gen("number", dtype=int, max_tokens=8)
    return list(s["point"])


def everything(run: ProgramRun) -> dict[str, object]:
    names = ["talk", "sure", "why", "reason", "point", "drafts", "number"]
    return {
        "text": run.text(),
        "messages": run.messages(),
        "variables": {name: run[name] for name in names},
        "infos": {name: without_cached(run.get_meta_info(name)) for name in names},
        "returned": run.return_value,
        "prompt_tokens": run.usage().prompt_tokens,
    }


def without_cached(info: MetaInfo) -> MetaInfo:
    """What was cached depends on what ran at the same time."""
    if isinstance(info, list):
        return [without_cached(member) for member in info]
    if isinstance(info, GenInfo):
        return msgspec.structs.replace(info, usage=as_if_uncached(info.usage))
    return info


def as_if_uncached(usage: Usage) -> Usage:
    return msgspec.structs.replace(usage, cached_tokens=0)


def test_a_program_gives_the_same_on_both(server: ServedClient, endpoint: RuntimeEndpoint) -> None:
    server.flush()
    direct = everything(interview.run("trees", backend=server))
    server.flush()
    remote = everything(interview.run("trees", backend=endpoint))
    assert remote == direct


def test_streaming_gives_the_text_as_it_comes(endpoint: RuntimeEndpoint) -> None:
    @function
    def program(s: ProgramState) -> None:
        s += "Once" + gen("x", max_tokens=40, ignore_eos=True)

    run = program.run(backend=endpoint, stream=True)
    pieces = list(run.text_iter("x"))
    assert len(pieces) > 1
    assert "".join(pieces) == run["x"]


def test_a_batch_of_async_programs(server: ServedClient, endpoint: RuntimeEndpoint) -> None:
    @function
    async def program(s: ProgramState, index: int) -> None:
        s += f"Number {index}:" + gen("x", max_tokens=4)

    batch = [{"index": index} for index in range(40)]
    hosts: list[ProgramHost] = [server, endpoint]
    direct, remote = [
        [run["x"] for run in program.run_batch(batch, backend=host)] for host in hosts
    ]
    assert remote == direct


CALLS: list[tuple[SamplingParams, Constraint | None, LogprobOptions | None]] = [
    (SamplingParams(max_new_tokens=8, temperature=0.0), None, LogprobOptions(top=2)),
    (SamplingParams(max_new_tokens=8, seed=1, n=3), None, LogprobOptions()),
    (SamplingParams(max_new_tokens=8, seed=2, top_k=5, top_p=0.9, min_p=0.01), None, None),
    (SamplingParams(max_new_tokens=0, temperature=0.0), None, LogprobOptions(prompt_start=0)),
    (
        SamplingParams(max_new_tokens=2, temperature=0.0),
        None,
        LogprobOptions(output=False, prompt_start=1, top=4),
    ),
    (
        SamplingParams(
            max_new_tokens=20,
            seed=-3,
            stop=("e", "\u2028"),
            stop_token_ids=(5, 10**9),
            logit_bias={11: 5.0},
            frequency_penalty=0.5,
            presence_penalty=0.5,
            repetition_penalty=1.2,
            min_new_tokens=3,
        ),
        None,
        None,
    ),
    (SamplingParams(max_new_tokens=12, temperature=0.0), Regex("[a-f]{3,9}"), None),
    (SamplingParams(max_new_tokens=12, temperature=0.0), Choice(("red", "green")), None),
    (SamplingParams(max_new_tokens=12, temperature=0.0), Ebnf('root ::= "x" | "yy"'), None),
    (SamplingParams(max_new_tokens=30, seed=4), JsonSchema('{"type": "boolean"}'), None),
    (
        SamplingParams(max_new_tokens=60, seed=4),
        JsonSchema(
            '{"uniqueItems":true,"type":"array","maxItems":2,"items":{"type":["string","null"],'
            '"maxLength":3}}',
            open_objects=True,
            unenforced="validate",
        ),
        None,
    ),
]


@pytest.mark.parametrize("case", range(len(CALLS)))
def test_every_field_of_a_completion_is_the_same(
    server: ServedClient, endpoint: RuntimeEndpoint, case: int
) -> None:
    sampling, constraint, logprobs = CALLS[case]
    prompt = "The tree <|im_start|> grows é🌳"

    async def directly() -> list[Completion]:
        call = GenerateCall(
            input_ids=await server.encode([TextPiece(prompt)]),
            sampling=sampling,
            constraint=constraint,
            logprobs=logprobs,
        )
        return collect([chunk async for chunk in server.generate(call)])

    server.flush()
    expected = server.executor.run(directly()).result()
    server.flush()
    assert endpoint.complete(prompt, sampling, constraint=constraint, logprobs=logprobs) == expected


@pytest.mark.parametrize("remote", [True, False])
def test_a_program_hears_the_verdict(
    server: ServedClient, endpoint: RuntimeEndpoint, remote: bool
) -> None:
    items = {"type": "string", "maxLength": 3}
    schema = {"type": "array", "items": items, "uniqueItems": True, "maxItems": 2}

    @function
    def program(s: ProgramState) -> None:
        s += "A list: "
        s += gen("flag", json_schema={"type": "boolean"})
        s += gen("list", json_schema=schema, unenforced="validate")
        s += gen("text", max_tokens=3)

    backend: ProgramHost = endpoint if remote else server
    run = program.run(backend=backend)
    flag, found, text = (run.get_meta_info(name) for name in ("flag", "list", "text"))
    assert isinstance(flag, GenInfo) and flag.grammar is not None
    assert flag.grammar.valid is True and not flag.grammar.notes
    assert isinstance(found, GenInfo) and found.grammar is not None
    texts = json.loads(run["list"])
    assert found.grammar.valid is (len(set(texts)) == len(texts))
    assert found.grammar.notes[0] == "#: uniqueItems is not enforced"
    assert isinstance(text, GenInfo) and text.grammar is None


def test_ids_of_a_completion_go_in_and_come_out(endpoint: RuntimeEndpoint) -> None:
    sampling = SamplingParams(max_new_tokens=5, temperature=0.0, ignore_eos=True)
    [whole] = endpoint.complete([3, 4, 5], sampling)
    [rest] = endpoint.complete([3, 4, 5, *whole.ids[:2]], sampling)
    assert rest.ids[:3] == whole.ids[2:]


@pytest.mark.parametrize("prefix", [[], [3, 4, 5]])
def test_scores_are_the_same(
    server: ServedClient, endpoint: RuntimeEndpoint, prefix: list[int]
) -> None:
    continuations = [[6, 7, 8], [9], [6, 7, 10, 11]]
    direct = server.executor.run(server.score(prefix, continuations)).result()
    remote = endpoint.executor.run(endpoint.score(prefix, continuations)).result()
    assert remote == direct
    assert (remote[1][0].logprob is None) == (not prefix)


@pytest.mark.parametrize(
    "fields",
    [
        {"input_ids": []},
        {"input_ids": [1] * (CONTEXT_LEN + 1)},
        {"input_ids": [-1]},
        {"sampling": SamplingParams(temperature=-1.0)},
        {"sampling": SamplingParams(max_new_tokens=CONTEXT_LEN)},
        {"sampling": SamplingParams(logit_bias={10**6: 1.0})},
        {"sampling": SamplingParams(n=0)},
        {"logprobs": LogprobOptions(top=10**6)},
        {"logprobs": LogprobOptions(prompt_start=10**6)},
        {"constraint": Regex("(")},
        {"constraint": JsonSchema("{")},
        {"constraint": JsonSchema('{"type": "object", "unknownKeyword": 1, "not": {}}')},
        {"constraint": Ebnf("root ::= missing")},
    ],
)
def test_bad_calls_are_refused_alike(
    server: ServedClient, endpoint: RuntimeEndpoint, fields: dict[str, Any]
) -> None:
    call = GenerateCall(input_ids=[1, 2], sampling=SamplingParams(max_new_tokens=2))
    bad = msgspec.structs.replace(call, **fields)
    errors: list[EspalierError] = []
    for host in (server, endpoint):

        async def collected(host: ServedClient | RuntimeEndpoint = host) -> None:
            _ = [chunk async for chunk in host.generate(bad)]

        with pytest.raises(EspalierError) as raised:
            host.executor.run(collected()).result()
        errors.append(raised.value)
    direct, remote = errors
    assert isinstance(direct, InvalidRequest) and isinstance(remote, InvalidRequest)
    if direct.param is not None:  # the server may name more than that
        assert (remote.param or "").partition("[")[0] == direct.param


@pytest.mark.parametrize("roles", [("user", "system"), ("bishop",)])
def test_roles_that_the_template_refuses(
    server: ServedClient, endpoint: RuntimeEndpoint, roles: tuple[str, ...]
) -> None:
    outcomes: list[object] = []
    for host in (server, endpoint):
        try:
            outcomes.append(host.executor.run(host.role_markers(roles)).result())
        except InvalidRequest as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


def test_text_that_is_none_and_text_that_is_too_long(endpoint: RuntimeEndpoint) -> None:
    with pytest.raises(InvalidRequest, match="surrogate"):
        endpoint.complete("\ud800")
    with pytest.raises(InvalidRequest, match="context length"):
        endpoint.complete("word " * 100_000)


def test_an_error_of_a_branch_ends_the_others_on_the_server(
    server: ServedClient, endpoint: RuntimeEndpoint
) -> None:
    @function
    def program(s: ProgramState) -> None:
        s += "a"
        branches = s.fork(3)
        branches[0] += gen("x", max_tokens=400, ignore_eos=True)
        branches[1] += gen("x", max_tokens=400, ignore_eos=True)
        server.wait_until_busy()
        branches[2] += gen("x", regex="(")
        branches.join()

    with pytest.raises(BranchError, match="branch 2 failed: InvalidRequest"):
        program.run(backend=endpoint)
    server.wait_until_idle()


@function
def endless(s: ProgramState) -> None:
    s += "a" + gen("x", max_tokens=CONTEXT_LEN - 8, ignore_eos=True)
    s += gen("y", max_tokens=2)


def test_cancelling_a_run_frees_its_request(
    server: ServedClient, endpoint: RuntimeEndpoint
) -> None:
    run = endless.run(backend=endpoint, stream=True)
    server.wait_until_busy()
    run.cancel()
    assert run.error() is not None
    server.wait_until_idle()
    assert endpoint.complete("a", SamplingParams(max_new_tokens=1))[0].ids


def test_closing_a_generator_frees_its_request(
    server: ServedClient, endpoint: RuntimeEndpoint
) -> None:
    async def first_chunk() -> None:
        sampling = SamplingParams(max_new_tokens=400, ignore_eos=True)
        chunks = endpoint.generate(GenerateCall(input_ids=[5], sampling=sampling))
        await anext(chunks)
        await chunks.aclose()

    endpoint.executor.run(first_chunk()).result()
    server.wait_until_idle()


def test_closing_the_endpoint_ends_what_runs(server: ServedClient) -> None:
    before = threading.active_count()
    endpoint = RuntimeEndpoint(server.url)
    run = endless.run(backend=endpoint, stream=True)
    server.wait_until_busy()
    errors: list[BaseException] = []

    def complete() -> None:
        try:
            endpoint.complete("a", SamplingParams(max_new_tokens=400, ignore_eos=True))
        except EngineClosed as error:
            errors.append(error)

    waiting = threading.Thread(target=complete)
    waiting.start()
    endpoint.close()
    endpoint.close()
    waiting.join()
    assert isinstance(run.error(), EngineClosed)
    assert len(errors) == 1
    server.wait_until_idle()
    with pytest.raises(EngineClosed):
        endpoint.complete("a")
    assert threading.active_count() == before


def test_what_the_server_says_of_itself(server: ServedClient, endpoint: RuntimeEndpoint) -> None:
    assert endpoint.health() is True
    assert endpoint.model_info()["model_path"] == "models/tiny.gguf"
    assert endpoint.server_info()["served_model_name"] == "tiny"
    server.flush()
    endpoint.complete([7] * 30, SamplingParams(max_new_tokens=1))
    assert endpoint.flush_cache() >= 29


def test_where_there_is_no_server(server: ServedClient) -> None:
    with served_client() as gone:
        url = gone.url
    with RuntimeEndpoint(url) as endpoint:
        assert endpoint.health() is False
        with pytest.raises(Unavailable, match="can't be reached"):
            endpoint.complete("a")


def test_the_key_of_the_server() -> None:
    sampling = SamplingParams(max_new_tokens=1)
    with served_client(api_key="secret") as server:
        for key in (None, "wrong"):
            with (
                RuntimeEndpoint(server.url, api_key=key) as endpoint,
                pytest.raises(InvalidRequest, match="API key"),
            ):
                endpoint.complete("a", sampling)
        with RuntimeEndpoint(server.url, api_key="secret") as endpoint:
            assert len(endpoint.complete("a", sampling)) == 1


def test_a_call_from_its_own_loop_is_refused_instead_of_waiting_for_ever(
    endpoint: RuntimeEndpoint,
) -> None:
    async def call() -> None:
        endpoint.complete("a")

    with pytest.raises(EspalierError, match="own thread"):
        endpoint.executor.run(call()).result()


def test_from_a_loop_of_the_caller(endpoint: RuntimeEndpoint) -> None:
    @function
    async def program(s: ProgramState) -> str:
        s.user("Hello")
        s.assistant(gen("x", max_tokens=4))
        return str(await s.get_async("x"))

    run = asyncio.run(program.run_async(backend=endpoint))
    assert run.return_value == run["x"]
