"""CPU time of processes of this machine: those that serve a TCP port, or those of a session. From /proc (Linux)."""

import os
from collections.abc import Iterable
from pathlib import Path

LISTEN = "0A"  # of the kernel's socket states, see proc_pid_net(5)
_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")


def listeners(port: int) -> set[int]:
    """The processes of ours that hold a socket listening on `port`, and all their descendants."""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    found = {pid for pid in _pids() if sockets & _open_files(pid)}
    while more := {pid for pid in _pids() if _parent(pid) in found} - found:
        found |= more
    return found


def session_cpu_seconds(leader: int) -> float:
    """User and system time so far of all processes in the session of `leader`, and of those that have ended."""
    # proc_pid_stat(5): the session is the 6th field; behind a process's own times are those of its ended children.
    stats = [stat for pid in _pids() if (stat := _stat(pid)) and int(stat[3]) == leader]
    return sum(int(ticks) for stat in stats for ticks in stat[11:15]) * _TICK_SECONDS


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time so far, summed. A process that has ended counts nothing."""
    # proc_pid_stat(5): the fields behind the command's ")" begin with the third, utime is the 14th.
    return sum(int(ticks) for pid in pids for ticks in _stat(pid)[11:13]) * _TICK_SECONDS


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            fields = line.split()
            if fields[3] == LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(fields[9])
    return inodes


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _open_files(pid: int) -> set[str]:
    files = set()
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            files.add(os.readlink(link))
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # it or the file is gone, or another user's
        pass
    return files


def _parent(pid: int) -> int:
    stat = _stat(pid)
    return int(stat[1]) if stat else 0


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
