"""Read files whose size and kind are somebody else's choice: judged before anything of them is read."""

import errno
import os
import stat
import sys
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO

MOST_SECRET_BYTES = 1 << 20
"""Of a key, a certificate, a token or an address: more than any has."""
_DEVICES = Path("/dev")


def read_bytes(path: Path, most_bytes: int) -> bytes:
    """The content of a regular file, or of a pipe under ``/dev``, of at most ``most_bytes``.

    Raises ``OSError``: EFBIG for a longer one, EINVAL for another kind of file, which could be waited for.
    """
    _judge(path, path.stat(), most_bytes)
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # it may be replaced by a pipe meanwhile
    with os.fdopen(number, "rb") as file:
        found = os.fstat(number)
        _judge(path, found, most_bytes)
        os.set_blocking(number, not stat.S_ISREG(found.st_mode))  # some files of /proc never end either
        content: bytes | None = file.read(most_bytes + 1)
    if content is None:
        raise OSError(errno.EAGAIN, "nothing to read yet", str(path))
    if len(content) > most_bytes:  # a pipe, or it has grown
        raise _too_long(path, most_bytes)
    return content


def _judge(path: Path, found: os.stat_result, most_bytes: int) -> None:
    kind = found.st_mode
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind) or path.is_relative_to(_DEVICES)):
        raise OSError(errno.EINVAL, "expected a regular file", str(path))
    if found.st_size > most_bytes:
        raise _too_long(path, most_bytes)


def read_text(path: Path, most_bytes: int) -> str:
    """The same as UTF-8. Raises ``OSError``, and ``ValueError`` where it is none."""
    return read_bytes(path, most_bytes).decode()


def bounded_lines(file: IO[bytes], most_bytes: int, count: int = sys.maxsize) -> Iterator[bytes]:
    """The next ``count`` lines of an open file. Raises ``OSError`` for one of more than ``most_bytes``."""
    for line in islice(iter(partial(file.readline, most_bytes + 1), b""), count):
        if len(line) > most_bytes:
            raise OSError(errno.EFBIG, f"a line of more than {most_bytes:,} bytes")
        yield line


def _too_long(path: Path, most_bytes: int) -> OSError:
    return OSError(errno.EFBIG, f"more than {most_bytes:,} bytes", str(path))
