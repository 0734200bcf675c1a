"""How a core type is called on the wire."""

import re


def snake_case(record_type: type) -> str:
    """``TurnEnded`` as ``turn_ended``: the name of its member in the ``kind`` oneof."""
    return re.sub(r"(?<=.)([A-Z])", r"_\1", record_type.__name__).lower()
