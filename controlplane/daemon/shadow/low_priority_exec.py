"""Becomes a command that has little claim on the machine and ends with the daemon that began it.

``python low_priority_exec.py CPU_SECONDS COMMAND...``: what is set here holds for the command, since
it is the same process.
"""

import ctypes
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1
_NICENESS = 10  # a tenth of what others have: with 19, where all CPUs are busy, answers do not come


def main(arguments: list[str]) -> None:
    """Set what holds for the process, and become the command."""
    cpu_s, *command = arguments
    parent = os.getppid()
    os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s), int(cpu_s)))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            return  # it ended before it could be asked to take us with it
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
