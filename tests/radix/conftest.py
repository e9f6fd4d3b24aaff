"""Has the tests of what is written twice run on either: native code, and Python's without it."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import cast

import pytest

from espalier.radix import core
from tests.radix.plain import PART, plain

TWICE = {"cache", "check", "eviction", "leases", "picture", "slots", "tree"}


def _module_of(asking: pytest.Metafunc | pytest.FixtureRequest) -> ModuleType:
    return cast(ModuleType, asking.module)  # pyright: ignore[reportUnknownMemberType]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if _module_of(metafunc).__name__.rpartition("test_")[2] in TWICE:
        metafunc.parametrize("implementation", ["native", "plain"], indirect=True, scope="module")


@pytest.fixture(scope="module", autouse=True)
def implementation(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test module has imported of the part becomes that of one implementation."""
    which: str | None = getattr(request, "param", None)
    if which == "native":
        pytest.importorskip(f"{PART}._core")
    tests = _module_of(request)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in list(vars(tests).items()):
            module = str(getattr(value, "__module__", ""))
            if which == "plain" and module.startswith(f"{PART}."):
                origin = module.removeprefix(f"{PART}.").replace("_core", "core")
                patch.setattr(tests, name, getattr(plain(origin), name))
            elif which == "native" and name in core.__all__:
                patch.setattr(tests, name, getattr(core, name))
        yield
