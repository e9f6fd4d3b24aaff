"""`python -m espalier` is the `espalier` command."""

from __future__ import annotations

import sys

from espalier.cli import main

sys.exit(main())
