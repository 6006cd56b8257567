"""Run a command that dies with its parent: `python tether.py PARENT_PID COMMAND...`.

A parent that is killed outright cannot stop its children, so on Linux the kernel is asked to. The
request survives exec, so what runs in the end is the command itself, in this very process.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main()
