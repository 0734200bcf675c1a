"""A JSON object whose fields are asked for by path and kind; null is as good as nothing."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, TypeVar

from controlplane.lab.workload.trace_lines import BadProgram

_Kind = TypeVar("_Kind")
_KINDS = {dict: "object", list: "array", str: "str", int: "int"}


class Fields:
    """Each method raises ``BadProgram`` where the path leads to something of another kind."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        if not isinstance(value, dict):
            raise BadProgram(f"Expected `object`, got `{_KINDS.get(type(value), type(value).__name__)}`")
        self.value: dict[str, Any] = value

    def any(self, path: str) -> Any:
        value: Any = self.value
        for name in path.split("."):
            if not isinstance(value, dict):
                return None
            value = value.get(name)
        return value

    def _of(self, path: str, kind: type[_Kind]) -> _Kind | None:
        value = self.any(path)
        if value is None:
            return None
        if not isinstance(value, kind) or isinstance(value, bool):
            raise BadProgram(
                f"{path}: Expected `{_KINDS[kind]}`, got `{_KINDS.get(type(value), type(value).__name__)}`"
            )
        return value

    def text(self, path: str) -> str:
        return self._of(path, str) or ""

    def count(self, path: str) -> int:
        """Not negative; 0 where it is missing."""
        value = self.any(path)
        found = int(value) if isinstance(value, float) and value.is_integer() else self._of(path, int) or 0
        if found < 0:
            raise BadProgram(f"{path}: Expected `int` >= 0, got {found}")
        return found

    def number(self, path: str) -> float | None:
        value = self.any(path)
        return value if isinstance(value, float) else self._of(path, int)

    def objects(self, path: str) -> Iterator["Fields"]:
        """Of an array; others in it are passed over, as content may be text."""
        return (Fields(each) for each in self.array(path) if isinstance(each, dict))

    def array(self, path: str) -> list[Any]:
        return self._of(path, list) or []

    def time(self, path: str) -> float | None:
        """ISO 8601 (UTC, if it has no zone), or a number of s, ms or ns since 1970, in seconds."""
        stamp = self.any(path)
        if not isinstance(stamp, str):
            number = self.number(path)
            scale = next((scale for least, scale in ((1e17, 1e9), (1e11, 1e3)) if (number or 0.0) >= least), 1.0)
            return None if number is None else number / scale
        try:
            at = datetime.fromisoformat(stamp)
        except ValueError as error:
            raise BadProgram(f"{path}: expected a time as in ISO 8601, got {stamp[:40]!r}") from error
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
