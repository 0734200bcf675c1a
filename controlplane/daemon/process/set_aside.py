"""Messages that could not be applied, with their bytes: for whoever looks for the error that they brought about.

The first ones are kept, in memory and with the next snapshot on disk, up to a bound; all of them are counted.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

FOLDER = "set-aside"
_MOST = 64
_MOST_BYTES = 4 << 20


class SetAside:
    """What was set aside in this daemon's life."""

    def __init__(self) -> None:
        self.count = 0
        self.last = ""  # on which subject, and why
        self._unwritten: list[bytes] = []
        self._retained = 0
        self._bytes = 0

    def add(self, data: bytes, subject: str, why: str) -> None:
        self.count += 1
        self.last = f"{subject or 'a command'}: {why}"
        if self._retained < _MOST and self._bytes + len(data) <= _MOST_BYTES:
            self._retained += 1
            self._bytes += len(data)
            self._unwritten.append(data)

    def take(self) -> list[bytes]:
        new, self._unwritten = self._unwritten, []
        return new


def write_messages(folder: Path, messages: Sequence[bytes]) -> None:
    """Write them to files below ``folder``, no more of them than the bound. An error costs the files."""
    folder = folder / FOLDER
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        numbers = (path.stem for path in folder.glob("*.message"))
        last = max((int(number) for number in numbers if number.isdigit()), default=0)
        for number, data in enumerate(messages[: max(0, _MOST - last)], last + 1):
            (folder / f"{number}.message").write_bytes(data)
