"""The radix bench: its contenders agree, its works are what they say, and it runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.radix import main
from bench.radix_contenders import Ours, Usual
from bench.radix_peer import load_peer
from bench.radix_usual import UsualCache
from bench.radix_works import BLOCK_LEN, NODE_LEN, random_tree, read_trace

runs = st.lists(st.integers(0, 2), min_size=1, max_size=8)


@given(st.lists(st.tuples(runs, runs), min_size=1, max_size=12))
def test_our_cache_and_the_usual_design_match_the_same(
    requests: list[tuple[list[int], ...]],
) -> None:
    ours, usual = Ours(1000), Usual(1000)
    for prompt, output in requests:
        whole = np.array(prompt + output, np.int32)
        keys = whole[: len(prompt)], whole
        known = ours.live(*keys)
        assert usual.live(*map(usual.key_of, keys)) == known
        assert ours.match(whole) == usual.match(usual.key_of(whole)) == len(whole)


def test_the_usual_design_evicts_its_oldest_unlocked_leaf() -> None:
    cache = UsualCache()
    slots = np.arange(4, dtype=np.int32)
    _, held = cache.insert([1, 2, 3], slots[:3])
    cache.insert([1, 2, 4], np.array([0, 1, 3], np.int32))
    cache.lock(held)
    cache.evict(1)
    assert [run.tolist() for run in cache.freed] == [[3]]
    cache.evict(1)
    assert len(cache.freed) == 1
    cache.unlock(held)
    cache.evict(3)
    assert [run.tolist() for run in cache.freed] == [[3], [2], [0, 1]]


def write_trace(file: Path) -> None:
    """The second prompt shares the first block of the first one."""
    lines = [
        {"input_length": 2 * BLOCK_LEN - 7, "hash_ids": [0, 1]},
        {"input_length": BLOCK_LEN + 9, "hash_ids": [0, 2]},
        {"input_length": 6 * BLOCK_LEN, "hash_ids": [3, 4, 5, 6, 7, 8]},
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_equal_blocks_of_a_trace_are_equal_tokens(tmp_path: Path) -> None:
    file = tmp_path / "mooncake_conversation_trace.jsonl"
    write_trace(file)
    trace = read_trace(file, max_tokens=2 * BLOCK_LEN)
    first, second = trace.prompts
    assert (trace.name, len(first), len(second)) == ("conversation", 1017, 521)
    assert (first[:BLOCK_LEN] == second[:BLOCK_LEN]).all()
    assert (first[BLOCK_LEN : BLOCK_LEN + 9] != second[BLOCK_LEN:]).any()


def test_each_path_of_a_random_tree_adds_one_node() -> None:
    paths = random_tree(300)
    ours = Ours(NODE_LEN * len(paths))
    for path in paths:
        assert ours.live(path, path) == len(path) - NODE_LEN
    nodes = list(ours.cache.tree.nodes())
    assert len(nodes) == len(paths) == 303 and ours.cache.num_free == 0
    assert sum(not node.children for node in nodes) >= 300


def test_it_measures_every_work_and_draws_the_growth(tmp_path: Path) -> None:
    for name in ("conversation", "synthetic"):
        write_trace(tmp_path / f"mooncake_{name}_trace.jsonl")
    rows_file, plot = tmp_path / "radix.json", tmp_path / "radix.svg"
    options = ["--leaves", "400", "--rounds", "2", "--trace-tokens", "8000"]
    files = ["--trace-dir", str(tmp_path), "--json", str(rows_file), "--plot", str(plot)]
    main(options + files)
    rows = {row["name"]: row for row in json.loads(rows_file.read_text())["rows"]}
    assert all(row["value"] > 0 for row in rows.values())
    for work in ("conversation", "synthetic", "tree of 400 leaves"):
        assert f"{work}: match + insert, a request: usual design / ours" in rows
    assert rows["conversation: memory outside the KV, a cached token"]["target"] == 24
    drawn = plot.read_text()
    assert {f"<!-- {name} -->" in drawn for name in ("espalier", "usual design")} == {True}


def test_a_peer_is_loaded_with_empty_modules_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "sglang" / "srt" / "mem_cache"
    package.mkdir(parents=True)
    (package / "utils.py").write_text("def real():\n    return 7\n")
    (package / "radix_cache.py").write_text(
        "from sglang.srt.heavy.kernels import launch\n"
        "from sglang.srt.mem_cache.utils import real\n"
        "class RadixCache:\n    value = real()\n"
    )
    before = set(sys.modules)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    peer = load_peer(tmp_path)
    for name in set(sys.modules) - before:
        if name.partition(".")[0] == "sglang":
            monkeypatch.delitem(sys.modules, name)
    assert peer.RadixCache.value == 7
    with pytest.raises(TypeError):
        peer.launch(3)
