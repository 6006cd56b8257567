"""A supervisor of three small children, for the tests: `first` and `second` run, `third` exits as told.

`talking` and `talking-unprefixed` have one child, `first`, that says much and then adds its id to a file.
"""

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
TALK = """
import contextlib, os, pathlib, signal, sys
for _ in range(1000):
    with contextlib.suppress(OSError):
        os.write(1, 999 * b"a" + b"\\n")
with pathlib.Path(sys.argv[1]).open("a") as file:
    print(os.getpid(), file=file)
signal.pause()
"""


async def main(kind: str, *arguments: str) -> int:
    if kind.startswith("talking"):
        talking = Child("first", [sys.executable, "-c", TALK, *arguments])
        return await Supervisor([[talking]], prefix=kind == "talking").run()
    groups = [
        [Child("first", [sys.executable, "-c", WAIT])],
        [Child("second", [sys.executable, "-c", STUBBORN if kind == "stubborn" else WAIT])],
    ]
    if kind == "misconfigured":
        groups.append([Child("third", [sys.executable, "-c", "raise SystemExit(78)"])])
    return await Supervisor(groups, prefix=True).run()


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
