"""Starts the runtime's processes, keeps them alive, and ends them; handles no requests.

    launcher ─┬─ tokenizer      HTTP; the socket it listens on is the launcher's
              ├─ detokenizer
              └─ fork server    holds the model
                   └─ scheduler

When a process dies a new epoch begins: every open request of the old one ends with an error,
the other processes keep what they have, and the dead one is replaced.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from ..config import ServerConfig
from ..errors import EspalierError
from ..http.tracing import check_endpoint
from ..hub.catalog import default_cache_dir
from ..hub.source import resolve_model
from .directory import PrivateDirectory
from .listening import listen_tcp, listen_unix, url_of
from .supervisor import Supervisor


class Launcher:
    """A running runtime, from `start` to `close`; its methods are for any thread.

    `uds`: listen on a Unix socket in the runtime's private directory, and on no port.
    Raises `InvalidRequest` for a bad configuration, `ModelError` if there is no such model,
    `LaunchError` if the port is not free.
    """

    def __init__(self, config: ServerConfig, *, uds: bool = False) -> None:
        config.validate()
        if config.otlp_endpoint is not None:
            check_endpoint(config.otlp_endpoint)
        config = _with_model_found(config)
        self._config = config
        directory = PrivateDirectory()
        self.directory = directory.path
        self.uds_path: Path | None = directory.path / "http" if uds else None
        try:
            listener = (
                listen_tcp(config.host, config.port)
                if self.uds_path is None
                else listen_unix(self.uds_path)
            )
        except BaseException:
            directory.close()
            raise
        self.url = url_of(listener)
        self._supervisor = Supervisor(config, directory, listener)
        # The children die with this thread, should this process be killed.
        self._thread = threading.Thread(
            target=self._supervisor.run, name="espalier-launcher", daemon=True
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def pids(self) -> dict[str, int]:
        """The processes that run now, by name."""
        return self._supervisor.pids

    def start(self) -> None:
        """Start the processes and wait until they are ready; once.

        Raises `ModelError` or `LaunchError`, and then leaves nothing behind.
        """
        assert self._thread.ident is None, "it has been started"
        try:
            self._thread.start()
            self._supervisor.started.result()
        except EspalierError:
            self._thread.join()
            raise
        except BaseException:  # interrupted
            self.close(drain_s=0.0)
            raise

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the runtime; whether it has ended. Raises why it gave up."""
        ended: Future[None] = self._supervisor.ended
        if not wait_for([ended], timeout_s).done:
            return False
        ended.result()
        return True

    def close(self, drain_s: float | None = None) -> None:
        """Let open requests end within `drain_s` (None: as configured), then end everything.

        Leaves no process and no file behind. A second call may cut the first one short.
        """
        self._supervisor.stop(self._config.drain_timeout_s if drain_s is None else drain_s)
        self._supervisor.run()  # if it was never started, to clean up
        if self._thread.ident is not None:
            self._thread.join()
        else:
            wait_for([self._supervisor.ended])


def _with_model_found(config: ServerConfig) -> ServerConfig:
    """The configuration with the model's whole path: no process has to look for it again, and
    the program may change its directory."""
    engine = config.engine
    cache_dir = Path(engine.cache_dir) if engine.cache_dir else default_cache_dir()
    source = resolve_model(engine.model, cache_dir=cache_dir)
    return replace(
        config,
        served_model_name=config.served_model_name or source.name,
        engine=replace(engine, model=str(source.path.absolute())),
    )
