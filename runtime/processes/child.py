"""How a process of the runtime begins: its settings, and its tie to its parent."""

from __future__ import annotations

import logging
import sys

import msgspec

from ..config import ServerConfig
from ..lifeline import begin_as


class Settings(msgspec.Struct, frozen=True):
    """What the launcher gives a process on its standard input: one line of JSON.

    `fd` is what the process inherits besides: the tokenizer its listening socket, the fork
    server the pipe for its reports.
    """

    config: ServerConfig
    directory: str
    parent_pid: int
    fd: int = -1

    @classmethod
    def read(cls) -> Settings:
        return msgspec.json.decode(sys.stdin.buffer.readline(), type=cls)

    def encode(self) -> bytes:
        return msgspec.json.encode(self) + b"\n"


def begin_child(role: str, config: ServerConfig, parent_pid: int) -> None:
    """Log as `role`; die when the parent does, however it dies (Linux)."""
    logging.basicConfig(
        level=config.log_level.upper(),
        format=f"%(asctime)s {role} %(levelname)s %(name)s: %(message)s",
        force=True,
    )
    begin_as(role, parent_pid)
