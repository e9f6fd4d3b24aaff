"""A constraint made into an artefact: checked, given to the engine that enforces it, built."""

from __future__ import annotations

from ..errors import InvalidRequest
from ..ipc.compiling import Artefact
from ..messages import Constraint, JsonSchema
from .checks import check_constraint, param_of
from .engines import Engines

MAX_PAYLOAD_BYTES = 32 << 20


def compile_constraint(constraint: Constraint, engines: Engines) -> Artefact:
    """May take any time and any memory, and may not come back: to be called in a worker.

    `InvalidRequest` with the words of the check or of the engine.
    """
    check_constraint(constraint)
    payload = engines.xgrammar.compile(constraint).serialize()
    if len(payload) > MAX_PAYLOAD_BYTES:
        param = param_of(constraint)
        raise InvalidRequest(
            f"{param}: the compiled grammar has {len(payload) >> 20} MiB, "
            f"{MAX_PAYLOAD_BYTES >> 20} are allowed",
            param=param,
        )
    return Artefact("xgrammar", payload, is_json=isinstance(constraint, JsonSchema))
