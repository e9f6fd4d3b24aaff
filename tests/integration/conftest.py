"""The default model, loaded once for all tests of this folder. `make test` has pulled it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from espalier.runtime.config import EngineConfig
from espalier.runtime.engine import Engine
from espalier.runtime.loading import Model, load_model


@pytest.fixture(scope="session")
def model() -> Model:
    return load_model(EngineConfig())


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(kv_pool_tokens=8192, max_running_requests=16) as engine:
        yield engine
