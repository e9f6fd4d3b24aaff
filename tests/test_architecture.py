"""The part graph is acyclic and every import says what it means."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ALLOWED: dict[str, set[str]] = {  # part -> the parts it may import
    "kernels": set(),
    "radix": set(),
    "runtime": {"radix", "kernels"},
    "frontend_lang": {"runtime"},
    "router": {"radix", "runtime"},
}


def modules(*tops: str) -> list[tuple[str, Path]]:
    return [(top, path) for top in tops for path in sorted((ROOT / top).rglob("*.py"))]


def absolute_imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            if node.module == "espalier":
                yield from (f"espalier.{alias.name}" for alias in node.names)
            else:
                yield node.module


@pytest.mark.parametrize(
    ("part", "path"),
    modules(*ALLOWED, "tests", "bench", "examples"),
    ids=lambda v: str(v).removeprefix(f"{ROOT}/"),
)
def test_imports(part: str, path: Path) -> None:
    for name in absolute_imports(path):
        top, _, rest = name.partition(".")
        assert top not in ALLOWED, f"bare import of {name}: write espalier.{name}"
        if top == "espalier" and part in ALLOWED:
            target = rest.partition(".")[0]
            assert target != part, f"{name}: use a relative import inside {part}/"
            assert target in ALLOWED[part], f"{part}/ may not import {target}/"


@pytest.mark.parametrize(
    ("part", "path"), modules(*ALLOWED), ids=lambda v: str(v).removeprefix(f"{ROOT}/")
)
def test_relative_imports_stay_inside_the_part(part: str, path: Path) -> None:
    depth = len(path.relative_to(ROOT / part).parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level <= depth, f"line {node.lineno} climbs out of {part}/"


UNPICKLERS = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "multiprocessing"}


@pytest.mark.parametrize(
    ("part", "path"), modules(*ALLOWED, "espalier"), ids=lambda v: str(v).removeprefix(f"{ROOT}/")
)
def test_nothing_is_ever_unpickled(part: str, path: Path) -> None:
    """No module that unpickles is imported, and no library's shorthand for it is called."""
    tops = {name.partition(".")[0] for name in absolute_imports(path)}
    assert not tops & UNPICKLERS
    calls = {
        node.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
    }
    assert not calls & {"recv_pyobj", "send_pyobj"}


TORCH_FREE = (  # what the tokenizer and HTTP side of the runtime is made of
    "espalier",
    "espalier.cli",
    "espalier.commands",
    "espalier.radix",
    "espalier.router",
    "espalier.frontend_lang",
    "espalier.runtime.messages",
    "espalier.runtime.errors",
    "espalier.runtime.config",
    "espalier.runtime.options",
    "espalier.runtime.client",
    "espalier.runtime.ipc",
    "espalier.runtime.http",
    "espalier.runtime.processes.launcher",
    "espalier.runtime.processes.tokenizer",
    "espalier.runtime.processes.detokenizer",
    "espalier.runtime.submission",
    "espalier.runtime.sampling.params",
    "espalier.runtime.grammar.checks",
    "espalier.runtime.hub",
    "espalier.runtime.programs",
    "espalier.runtime.tokenizer",
    "espalier.runtime.detokenizer",
)


def test_torch_free_modules_do_not_import_torch() -> None:
    """In one fresh interpreter: all of them, packages with everything inside."""
    code = f"""
import importlib, pkgutil, sys
for name in {TORCH_FREE!r}:
    module = importlib.import_module(name)
    if name != "espalier" and hasattr(module, "__path__"):
        for found in pkgutil.walk_packages(module.__path__, name + "."):
            importlib.import_module(found.name)
    assert "torch" not in sys.modules, f"{{name}} imports torch"
"""
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("part", "path"),
    modules(*ALLOWED, "tests", "bench", "examples"),
    ids=lambda v: str(v).removeprefix(f"{ROOT}/"),
)
def test_modules_say_what_they_own(part: str, path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), f"{path} has no docstring"
