"""The first lines of every child process: `python -m espalier.runtime.processes.start NAME`.

Imports little, so that a process is tied to its parent before it loads anything large.
"""

from __future__ import annotations

import sys
from importlib import import_module

from ..errors import EspalierError
from .child import Settings, begin_child
from .line import report_failure


def main(name: str) -> int:
    """Be the process that the module `name` beside this one describes; its exit status.

    What the user can mend is told to the launcher, which tells the user.
    """
    settings = Settings.read()
    begin_child(name, settings.config, settings.parent_pid)
    try:
        import_module(f"{__package__}.{name}").run(settings)
    except EspalierError as error:
        report_failure(settings.directory, str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
