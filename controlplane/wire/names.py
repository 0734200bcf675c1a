"""How core types and methods are called on the wire, and in Python."""

import re


def snake_case(record_type: type) -> str:
    """``TurnEnded`` as ``turn_ended``: the name of its member in the ``kind`` oneof."""
    return in_snake_case(record_type.__name__)


def in_snake_case(name: str) -> str:
    """``GetStatus`` as ``get_status``."""
    return re.sub(r"(?<=.)([A-Z])", r"_\1", name).lower()
