"""``penstock`` in this process: a process of its own imports for half a second each time."""

import io
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from unittest.mock import patch

from controlplane.cli import main


def penstock(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a command line to its end: its status and what it prints."""
    output, errors, status = io.StringIO(), io.StringIO(), 0
    with (
        patch.object(sys, "argv", ["penstock", *arguments]),
        redirect_stdout(output),
        redirect_stderr(errors),
    ):
        try:
            main()
        except SystemExit as ended:
            status = int(ended.code or 0)
    return subprocess.CompletedProcess(arguments, status, output.getvalue(), errors.getvalue())
