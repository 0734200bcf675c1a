"""Files that are replaced as a whole: neither a reader nor a machine without power finds half of one."""

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def replace_file(
    path: Path, pieces: Iterable[bytes], *, mode: int = 0o600, like_before: bool = False, draft: str = "draft"
) -> None:
    """Replace ``path``, or make it, with this content; once this returns, it outlasts a loss of power.

    It is written beside, synced and renamed; then the folder is synced, too. Raises ``OSError``: the old content is
    there then, and no draft.

    :param mode: who may read it, less the umask; ``like_before``: whoever could read the one before.
    :param draft: how the draft's name ends. Of several writers of one file each needs its own.
    """
    beside = path.with_name(f".{path.name}.{draft}")
    beside.unlink(missing_ok=True)  # of one that was killed
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.writelines(pieces)
            file.flush()
            if like_before and path.exists():
                shutil.copystat(path, beside)
                with suppress(OSError):
                    shutil.chown(beside, path.stat().st_uid, path.stat().st_gid)
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        with suppress(OSError):
            beside.unlink()  # half of one would keep a full disk full
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Have the folder's names outlast a loss of power. Raises ``OSError``."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
