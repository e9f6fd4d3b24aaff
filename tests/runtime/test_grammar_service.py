"""The service over real compilers: killed, crashed, out of memory, orphaned, overtaken."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from espalier.runtime.errors import EngineClosed, InvalidRequest, Overloaded
from espalier.runtime.grammar.birth import fork_zygote
from espalier.runtime.grammar.guide import CompiledGrammar
from espalier.runtime.grammar.pool import PoolLimits
from espalier.runtime.grammar.service import CompileLimits, GrammarService
from espalier.runtime.grammar.stats import StopReason
from espalier.runtime.messages import Choice, Constraint, Ebnf, JsonSchema, Regex
from tests.fakes import BYTE_VOCAB, EOS
from tests.integration.servers import descendants, is_alive, seconds_until
from tests.local_grammars import byte_engines

WAIT_S = 60.0
SMALL = Choice(("yes", "no"))


def enum_of(count: int, salt: int = 0) -> JsonSchema:
    return JsonSchema(json.dumps({"enum": [f"{i * 7919:x} {i + salt:b}" for i in range(count)]}))


MONSTER = Ebnf(  # compiles for minutes, and takes 300 MB at most
    "root ::= " + " | ".join(f'[a-z]{{1,{count}}} "x"' for count in range(1, 1000))
)
HARD = enum_of(600)

# Checks for many seconds: each of many items against each of many alternatives.
ENDLESS = (
    json.dumps({"items": {"anyOf": [{"const": [i]} for i in range(2000)]}}),
    json.dumps([[1999]] * 400),
)


@contextmanager
def serving(
    deadline_s: float = WAIT_S,
    pool: PoolLimits | None = None,
    check_s: float = 1.0,
    forked: bool = False,
    **limits: int,
) -> Generator[GrammarService]:
    """forked: by this process, which then has only one thread; else by a program of its own."""
    before, engines = descendants(os.getpid()), byte_engines()
    pool = pool or PoolLimits()
    service = GrammarService(
        engines,
        CompileLimits(deadline_s=deadline_s, pool=pool, check_s=check_s, **limits),
        fork_zygote(engines, pool.max_job_bytes) if forked else None,
    )
    try:
        yield service
    finally:
        service.close()
    assert not descendants(os.getpid()) - before


@pytest.fixture(scope="module")
def service() -> Iterator[GrammarService]:
    """One for all who need no limits of their own: its start takes seconds."""
    with serving() as made:
        yield made


def zygote(service: GrammarService) -> int:
    """Its process id; it must have started."""
    starting = service._pool._starting  # pyright: ignore[reportPrivateUsage]
    assert starting is not None
    return starting.result().pid


def workers(service: GrammarService) -> set[int]:
    return {pid for pid in descendants(zygote(service)) if is_alive(pid)}


def stopped(service: GrammarService) -> dict[StopReason, int]:
    """Compilations that were stopped; what there were none of is left out."""
    return {why: count for why, count in service.stats.num_stopped.items() if count}


def num_compiled(service: GrammarService) -> int:
    return sum(service.compile_times.counts)


def running(service: GrammarService) -> int:
    """The worker that computes, once there is one: it has for 50 ms since it was first seen."""
    first_seen: dict[int, int] = {}

    def busy() -> list[int]:
        now = {pid: cpu_ticks(pid) for pid in workers(service)}
        for pid, ticks in now.items():
            first_seen.setdefault(pid, ticks)
        return [pid for pid, ticks in now.items() if ticks - first_seen[pid] >= 5]

    seconds_until(lambda: service.stats.num_running > 0)
    seconds_until(lambda: bool(busy()))
    return busy()[0]


def cpu_ticks(pid: int) -> int:
    """Hundredths of a second that a process has computed; 0 if it has gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(fields[11]) + int(fields[12])


def test_it_compiles_real_grammars(service: GrammarService) -> None:
    grammar = service.compile(Choice(("ok",))).result(WAIT_S)
    assert service.compile(Choice(("ok",))).result(WAIT_S) is grammar
    assert 0 < grammar.num_bytes <= service.stats.cache_bytes
    guide = grammar.guide()
    row = np.zeros((BYTE_VOCAB + 31) // 32, np.int32)
    for token_id in (ord("o"), ord("k"), EOS):
        assert guide.fill(row, 3)
        assert row[token_id // 32] == np.uint32(1 << token_id % 32).astype(np.int32)
        assert guide.accept(token_id)
    assert guide.is_terminated


@pytest.mark.parametrize(
    "constraint",
    [
        JsonSchema('"INVALID"'),
        JsonSchema("INVALID"),
        JsonSchema('{"type":"foo"}'),
        JsonSchema('{"type":"array","uniqueItems":true}'),
        JsonSchema("[" * 100_000),
        JsonSchema('{"const":"\\ud800"}'),
        JsonSchema('{"const":"\ud800"}'),
        JsonSchema('{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/a"}}}'),
        Regex("("),
        Regex("(" * 8000),
        Regex("[z-a]"),
        Regex(r"(a)\1"),
        Regex("(?=a)"),
        Regex("a\0"),
        Regex("\udfff"),
        Ebnf(""),
        Ebnf("root ::= " + "(" * 60_000),
        Ebnf('root ::= root "a"'),
        Ebnf("\ud800"),
        Choice(()),
        Choice(("\ud800",)),
        Choice(("a",) * 2000),
    ],
    ids=lambda constraint: ascii(constraint)[:40],
)
def test_hostile_constraints_are_refused_with_words(
    service: GrammarService, constraint: Constraint
) -> None:
    with pytest.raises(InvalidRequest, match=r"\w+ .*\w+ ") as refused:
        service.compile(constraint).result(WAIT_S)
    assert refused.value.param in ("json_schema", "regex", "ebnf", "choices")
    assert service.compile(Regex("a")).result(WAIT_S).num_bytes > 0


def test_sixteen_equal_constraints_at_once_are_compiled_once(service: GrammarService) -> None:
    before = num_compiled(service)
    with ThreadPoolExecutor(16) as pool:
        futures = list(pool.map(service.compile, [HARD] * 16))
    assert len({id(future.result(WAIT_S)) for future in futures}) == 1
    assert num_compiled(service) == before + 1


@pytest.mark.parametrize("how", [signal.SIGSEGV, signal.SIGKILL, signal.SIGABRT])
def test_a_crash_ends_its_own_request_only(service: GrammarService, how: signal.Signals) -> None:
    before = service.stats.num_stopped["crash"]
    lost = service.compile(MONSTER)
    worker = running(service)
    beside = service.compile(Regex(f"[a-z]{{{how}}}"))
    os.kill(worker, how)
    with pytest.raises(InvalidRequest, match=rf"ebnf: the compiler crashed .*{how.name}"):
        lost.result(WAIT_S)
    assert beside.result(WAIT_S).num_bytes > 0
    assert service.stats.num_stopped["crash"] == before + 1


def test_an_idle_worker_that_dies_is_nobody_s_loss(service: GrammarService) -> None:
    service.compile(Regex("b+")).result(WAIT_S)
    [worker] = workers(service)
    before = stopped(service)
    os.kill(worker, signal.SIGKILL)
    assert service.compile(Regex("b*")).result(WAIT_S).num_bytes > 0
    assert stopped(service) == before


def test_the_last_who_leaves_kills_the_compiler(service: GrammarService) -> None:
    before = service.stats.num_stopped["abandoned"]
    first, last = service.compile(MONSTER), service.compile(MONSTER)
    worker = running(service)
    assert first.cancel()
    assert service.compile(Regex("c+")).result(WAIT_S).num_bytes > 0
    assert is_alive(worker)
    assert last.cancel()
    seconds_until(lambda: not is_alive(worker))
    with pytest.raises(CancelledError):
        last.result(WAIT_S)
    seconds_until(lambda: service.stats.num_stopped["abandoned"] == before + 1)


def test_small_constraints_overtake_monsters(service: GrammarService) -> None:
    """As many as may run beside each other, and one more."""
    monsters = [service.compile(enum_of(5000, salt=i)) for i in range(3)]
    for index in range(3):
        small = service.compile(Regex(f"[a-f]{{{index + 1}}}"))
        assert small.result(WAIT_S).num_bytes > 0
    assert not any(monster.done() for monster in monsters)
    seconds_until(lambda: sum(map(is_lowly, workers(service))) == 3)
    assert service.stats.num_running == 3
    for monster in monsters:
        monster.cancel()
    seconds_until(lambda: not any(map(is_lowly, workers(service))))


def is_lowly(pid: int) -> bool:
    """It has what nobody else wants of the processors."""
    try:
        return os.sched_getscheduler(pid) == os.SCHED_IDLE
    except ProcessLookupError:
        return False


def test_a_callback_may_ask_again(service: GrammarService) -> None:
    asked: list[Future[CompiledGrammar]] = []
    done = threading.Event()

    def again(_: Future[CompiledGrammar]) -> None:
        asked.append(service.compile(Regex("d*")))
        done.set()

    service.compile(Regex("d+")).add_done_callback(again)
    assert done.wait(WAIT_S)
    assert asked[0].result(WAIT_S).num_bytes > 0


def test_the_zygote_has_one_thread(service: GrammarService) -> None:
    """Others would be missing in its forks, in the middle of what they did."""
    service.compile(SMALL).result(WAIT_S)
    assert len(os.listdir(f"/proc/{zygote(service)}/task")) == 1


def test_a_zygote_that_dies_is_replaced_and_its_jobs_are_run_again(
    service: GrammarService,
) -> None:
    service.compile(SMALL).result(WAIT_S)
    before, first = stopped(service), zygote(service)
    monster = service.compile(MONSTER)
    worker = running(service)
    os.kill(first, signal.SIGKILL)
    assert service.compile(Regex("e+")).result(WAIT_S).num_bytes > 0
    assert not is_alive(worker) and zygote(service) != first
    assert is_alive(running(service)) and not monster.done()
    assert monster.cancel()
    after = {**before, "abandoned": before.get("abandoned", 0) + 1}
    seconds_until(lambda: stopped(service) == after)


def test_a_deadline_kills_the_compiler_and_poisons_nothing() -> None:
    with serving(deadline_s=2.0) as service:
        late = service.compile(MONSTER)
        worker = running(service)
        with pytest.raises(InvalidRequest, match="ebnf: compiling takes longer than 2 s"):
            late.result(WAIT_S)
        seconds_until(lambda: not is_alive(worker))
        assert service.compile(SMALL).result(WAIT_S).num_bytes > 0
        again = service.compile(MONSTER)
        running(service)
        assert again.cancel()
        assert service.stats.num_stopped["deadline"] == 1


def test_who_gets_no_compiler_in_time_may_come_again() -> None:
    with serving(deadline_s=3.0, pool=PoolLimits(demote_after_s=1000.0)) as service:
        monster = service.compile(MONSTER)
        running(service)
        small = service.compile(SMALL)
        with pytest.raises(Overloaded, match="busy"):
            small.result(WAIT_S)
        with pytest.raises(InvalidRequest, match="takes longer"):
            monster.result(WAIT_S)
        assert service.compile(SMALL).result(WAIT_S).num_bytes > 0


def test_memory_has_a_bound() -> None:
    """And so has the cache."""
    with serving(pool=PoolLimits(max_job_bytes=1 << 20), cache_bytes=1) as service:
        greedy = service.compile(MONSTER)
        with pytest.raises(InvalidRequest, match="ebnf: .* 1 MiB of memory"):
            greedy.result(WAIT_S)
        assert stopped(service) == {"memory": 1}
        for _ in range(2):
            assert service.compile(SMALL).result(WAIT_S).num_bytes > 1
        assert num_compiled(service) == 3 and service.stats.cache_bytes == 0


@pytest.mark.parametrize(
    ("schema", "text", "valid", "trouble"),
    [
        ('{"uniqueItems":true}', "[1,2]", True, ""),
        ('{"uniqueItems":true}', "[1,1.0]", False, "uniqueItems"),
        ("true", '{"a":1,"a":2}', False, "'a' stands twice"),
        ("true", "[1", False, "JSON"),
        ('{"pattern":"(?<=a)b"}', '"ab"', None, "pattern"),
    ],
)
def test_a_text_is_checked(
    service: GrammarService, schema: str, text: str, valid: bool | None, trouble: str
) -> None:
    service.compile(SMALL).result(WAIT_S)  # the compilers' start takes longer than a check may
    verdict = service.check(schema, text).result(WAIT_S)
    assert verdict.valid is valid and trouble in verdict.trouble


def test_a_check_whose_worker_dies_is_unknown() -> None:
    with serving(check_s=WAIT_S) as service:
        service.compile(SMALL).result(WAIT_S)
        checked = service.check(*ENDLESS)
        os.kill(running(service), signal.SIGKILL)
        verdict = checked.result(WAIT_S)
        assert verdict.valid is None and "SIGKILL" in verdict.trouble
        assert service.check("true", "1").result(WAIT_S).valid


def test_a_check_that_takes_too_long_is_unknown_and_killed() -> None:
    with serving(check_s=2.0) as service:
        service.compile(SMALL).result(WAIT_S)
        checked = service.check(*ENDLESS)
        worker = running(service)
        verdict = checked.result(WAIT_S)
        assert verdict.valid is None and "longer than 2 s" in verdict.trouble
        seconds_until(lambda: not is_alive(worker))
        assert service.check("true", "1").result(WAIT_S).valid


def test_a_check_does_not_wait_for_monsters() -> None:
    with serving(check_s=WAIT_S) as service:
        service.compile(SMALL).result(WAIT_S)
        monster = service.compile(MONSTER)
        running(service)
        assert service.check("true", "1").result(WAIT_S).valid
        assert not monster.done()
        assert monster.cancel()


def test_closing_leaves_no_check_without_a_verdict() -> None:
    with serving(check_s=WAIT_S) as service:
        service.compile(SMALL).result(WAIT_S)
        checked = service.check(*ENDLESS)
        running(service)
        service.close()
        for late in (checked, service.check("true", "1")):
            verdict = late.result(WAIT_S)
            assert verdict.valid is None and "closed" in verdict.trouble


def test_closing_fails_those_who_wait() -> None:
    with serving() as service:
        futures = [service.compile(constraint) for constraint in (MONSTER, MONSTER, HARD)]
        running(service)
        service.close()
        for future in futures:
            with pytest.raises(EngineClosed):
                future.result(WAIT_S)
        with pytest.raises(EngineClosed):
            service.compile(SMALL)


def test_closing_while_the_compilers_start() -> None:
    with serving() as service:
        waiting = service.compile(SMALL)
        service.close()
        with pytest.raises(EngineClosed):
            waiting.result(WAIT_S)


def test_nothing_is_started_before_it_is_needed() -> None:
    before = descendants(os.getpid())
    with serving():
        assert descendants(os.getpid()) == before


ORPHANS = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
from tests.runtime.test_grammar_service import MONSTER, running, serving, zygote
with serving(forked={forked}) as service:
    service.compile(MONSTER)
    print(running(service), zygote(service), flush=True)
    sys.stdin.read()
"""


@contextmanager
def family(forked: bool) -> Generator[tuple[subprocess.Popen[str], list[int]]]:
    """A process whose compilers work, and their process ids."""
    process = subprocess.Popen(
        [sys.executable, "-c", ORPHANS.format(forked=forked)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    with process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 2 and all(map(is_alive, pids))
        yield process, pids


FORKED = pytest.mark.parametrize("forked", [False, True], ids=["spawned", "forked"])


@FORKED
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV])
def test_nothing_is_left_when_the_process_dies(how: signal.Signals, forked: bool) -> None:
    with family(forked) as (process, pids):
        process.send_signal(how)
        process.wait(WAIT_S)
        seconds_until(lambda: not any(map(is_alive, pids)))


@FORKED
def test_nothing_is_left_when_the_process_ends_by_an_error(forked: bool) -> None:
    with family(forked) as (process, pids):
        process.send_signal(signal.SIGINT)
        process.wait(WAIT_S)
        seconds_until(lambda: not any(map(is_alive, pids)))
