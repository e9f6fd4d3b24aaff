"""Turns a model's name or path into files on this machine; opens none of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from ..errors import ModelError
from .catalog import CATALOG, default_cache_dir, installed_path

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_HUB_FILES = ("*.json", "*.safetensors", "tokenizer.model", "*.jinja", "*.txt")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model's files: one GGUF file, or a directory in Hugging Face's layout."""

    kind: Literal["gguf", "hf"]
    path: Path
    name: str


def resolve_model(name_or_path: str | Path, *, cache_dir: Path | None = None) -> ModelSource:
    """Find a model by path, catalogue name or Hugging Face hub id, in this order.

    `cache_dir` holds the pulled catalogue models (None: the default one). Raises `ModelError`,
    which says what to do, if there is no such model here.
    """
    name, path = str(name_or_path), Path(name_or_path)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"{path}: the directory has no config.json")
        return ModelSource("hf", path, path.resolve().name)
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelError(f"{path}: neither a .gguf file nor a directory with a config.json")
        return ModelSource("gguf", path, path.stem)
    if name in CATALOG:
        return _resolve_pulled(name, cache_dir or default_cache_dir())
    if path.suffix != ".gguf" and _HUB_ID.fullmatch(name):
        return ModelSource("hf", _snapshot(name), name)
    raise ModelError(
        f"no model {name!r}: not a file or directory here, not a hub id (org/name), and not one "
        f"of the models that `espalier pull` knows ({', '.join(sorted(CATALOG))})"
    )


def _resolve_pulled(name: str, cache_dir: Path) -> ModelSource:
    entry = CATALOG[name]
    path = installed_path(entry, cache_dir)
    if not path.is_file():
        raise ModelError(f"{name} is not in {cache_dir}: run `espalier pull {name}`")
    return ModelSource("gguf", path, name)


def _snapshot(repo_id: str) -> Path:
    """The hub's files for `repo_id`, downloaded unless the hub library has them already."""
    import huggingface_hub  # here, because it takes half a second

    # The library types a parameter with a bare `dict`.
    download = cast("Callable[..., str]", huggingface_hub.snapshot_download)  # pyright: ignore[reportUnknownMemberType]
    try:
        directory = Path(download(repo_id, allow_patterns=list(_HUB_FILES)))
    except Exception as error:  # the library's errors, and its HTTP client's, have no other base
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ModelError(
            f"cannot get {repo_id!r} from the Hugging Face hub, and there is no directory of this "
            f"name: {reason}. Give a local directory or .gguf file, or a model that "
            f"`espalier pull` knows ({', '.join(sorted(CATALOG))})"
        ) from error
    if not (directory / "config.json").is_file():
        raise ModelError(f"{repo_id!r} on the Hugging Face hub has no config.json")
    return directory
