"""Runs pytest with the native extension from another file: one built with sanitizers, or that
emulates a processor.

python tests/sanitized.py FILE [pytest arguments]   (`make sanitize` and `make emulate` do it all)
"""

from __future__ import annotations

import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location

import pytest

NAME = "espalier.kernels._cpu"


def main() -> int:
    path, *arguments = sys.argv[1:]
    spec = spec_from_file_location(NAME, path, loader=ExtensionFileLoader(NAME, path))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
    return pytest.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
