"""The default model, loaded once for all tests of this folder. `make test` has pulled it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from espalier.runtime.engine import Engine
from espalier.runtime.loading import Model
from tests.integration.real_harness import load_as
from tests.native_kernels import KERNELS


@pytest.fixture(scope="session", params=KERNELS)
def model(request: pytest.FixtureRequest) -> Model:
    """With torch's kernels, and with the native ones in float32."""
    return load_as(request.param)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(kv_pool_tokens=8192, max_running_requests=16) as engine:
        yield engine
