"""Contenders for the schema bench that do what its processes must live through."""

from __future__ import annotations

import json
import os
import signal
import time

from bench.schemas.contenders import Matcher, Refusal


class Exactly:
    """Accepts the texts that a schema lists under `texts`, or does what its `act` says."""

    def compile(self, schema: str) -> Matcher | Refusal:
        stated = json.loads(schema)
        match stated.get("act"):
            case "hang":
                time.sleep(600)
            case "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "raise":
                raise RuntimeError("it can't")
            case "refuse":
                return Refusal("it won't")
            case "print":
                print("noise where the replies go", flush=True)
            case _:
                pass
        return _Texts(stated.get("texts", []))


class _Texts:
    def __init__(self, texts: list[str]) -> None:
        self._texts = texts

    def accepts(self, text: str) -> bool:
        return text in self._texts


class Absent:
    """An engine that is not installed."""

    def __init__(self) -> None:
        raise ModuleNotFoundError("no such engine")
