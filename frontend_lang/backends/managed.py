"""The runtime's own processes, started here and used over a private socket."""

from __future__ import annotations

import atexit

from espalier.runtime.config import ServerConfig
from espalier.runtime.processes.launcher import Launcher

from .endpoint import RuntimeEndpoint


class Runtime(RuntimeEndpoint):
    """A model served by processes of its own: `Engine` without the model in this process.

    `model` and `options` are fields of `ServerConfig`, `EngineConfig` and `SchedulerConfig`.
    Ready when this returns. Raises `ModelError` if the model can't be loaded, `LaunchError` if
    the processes can't be started. Close it, or use it as a context manager: no process stays.
    """

    def __init__(self, model: str = "smollm2", **options: object) -> None:
        config = ServerConfig.of(model=model, **options)
        self._launcher = Launcher(config, uds=True)
        super().__init__(
            self._launcher.url, api_key=config.api_key, uds=str(self._launcher.uds_path)
        )
        atexit.register(self.close)
        try:
            self._launcher.start()
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> dict[str, int]:
        """The processes that run now, by name."""
        return self._launcher.pids

    def close(self) -> None:
        """End running programs and requests with `EngineClosed`, then all processes. Idempotent."""
        super().close()
        self._launcher.close(drain_s=0.0)
        atexit.unregister(self.close)
