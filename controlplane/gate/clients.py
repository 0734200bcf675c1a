"""Name and version of a client, from what it says of itself: ``claude-cli 2.1.197``."""

import re
from collections.abc import Iterable

from controlplane.core.model.text import is_printable

_MOST = 64  # characters
_PRODUCT = re.compile(r"([^\s/]+(?:/[^\d\s][^\s]*)?)[/ ]v?(\d\S*)")  # OpenAI/Python 3.51.0 is one, too


def client_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The first product of its ``user-agent``; empty where it sends none that can be shown."""
    agent = next((value for name, value in headers if name.lower() == b"user-agent"), b"")
    text = agent.decode("utf-8", "replace").strip()
    found = _PRODUCT.match(text)
    name = f"{found[1]} {found[2]}" if found is not None else text.partition(" ")[0]
    return name[:_MOST] if is_printable(name) else ""
