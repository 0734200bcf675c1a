"""Becomes a command that ends with the process that began it, and may have little claim on the machine.

``python exec_bound.py CPU_SECONDS COMMAND...``: what is set here holds for the command, since it is the same
process. 0 seconds: as many as it wants, and the same priority as others.
"""

import ctypes
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1
_NICENESS = 10  # a tenth of what others have: with 19, where all CPUs are busy, answers do not come


def ends_with_us(*, cpu_s: int = 0) -> list[str]:
    """What stands before a command that is to be bound; by path, as it imports nothing."""
    return [sys.executable, "-I", "-S", __file__, str(cpu_s)]


def main(arguments: list[str]) -> None:
    """Set what holds for the process, and become the command."""
    cpu_s, *command = arguments
    parent = os.getppid()
    if int(cpu_s):
        os.nice(_NICENESS)
        resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s), int(cpu_s)))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            return  # it ended before it could be asked to take us with it
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
