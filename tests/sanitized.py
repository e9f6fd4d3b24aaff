"""Runs pytest with a native extension from another file: one built with sanitizers, or that
emulates a processor.

python tests/sanitized.py MODULE FILE [pytest arguments]   (`make sanitize`, `make emulate` do it)
"""

from __future__ import annotations

import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location

import pytest


def main() -> int:
    name, path, *arguments = sys.argv[1:]
    spec = spec_from_file_location(name, path, loader=ExtensionFileLoader(name, path))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return pytest.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
