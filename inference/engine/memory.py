"""How much memory there is, in bytes. 0 stands for what the system does not tell."""

import os
from typing import NamedTuple


class Memory(NamedTuple):
    free: int  # what can be taken without swapping
    total: int


def host_memory() -> Memory:
    try:
        with open("/proc/meminfo") as file:
            fields = dict(line.split(":", 1) for line in file)
    except FileNotFoundError:  # not Linux
        return Memory(0, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return Memory(*(int(fields[name].split()[0]) * 1024 for name in ("MemAvailable", "MemTotal")))


def process_memory() -> int:
    """What this process has in memory now (its resident set)."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError:  # not Linux
        return 0
