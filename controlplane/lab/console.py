"""The laboratory's console: names in traces and saved runs are strangers'. They are no markup, and order nothing.

What is to have a style is a ``Text``.
"""

from typing import Any

import rich.console
from rich.text import Text

from controlplane.core.model.text import printable


class Console(rich.console.Console):
    """Prints a string as it is, but for what is not printable. ``options`` are those of rich's."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **options})

    def render_str(self, text: str, **options: Any) -> Text:
        """As rich's, which each string passes that is printed, in tables as well."""
        return super().render_str("\n".join(map(printable, text.split("\n"))), **options)
