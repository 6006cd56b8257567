"""A supervisor of three small children, for the tests: `first` and `second` run, `third` exits as told."""

import asyncio
import sys

from inference.supervisor import Child, Supervisor

WAIT = """
import os, signal, sys
def end(*_):
    print("ended", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("pid", os.getpid(), flush=True)
while True:
    signal.pause()
"""
STUBBORN = "import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('pid', os.getpid(), flush=True)\n"
STUBBORN += "while True: signal.pause()"


async def main(kind: str) -> int:
    groups = [
        [Child("first", [sys.executable, "-c", WAIT])],
        [Child("second", [sys.executable, "-c", STUBBORN if kind == "stubborn" else WAIT])],
    ]
    if kind == "misconfigured":
        groups.append([Child("third", [sys.executable, "-c", "raise SystemExit(78)"])])
    return await Supervisor(groups, prefix=True).run()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1])))
