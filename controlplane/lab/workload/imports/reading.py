"""What readers of all formats have at hand: the file's name, where refusals go, and the loop over its records."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from controlplane.lab.workload.imports.calls import Session, Tally
from controlplane.lab.workload.imports.fields import Fields
from controlplane.lab.workload.imports.records import Record
from controlplane.lab.workload.trace_lines import BadProgram, ProgramLine


@dataclass(slots=True, kw_only=True)
class Reading:
    """One file as it is read. ``source`` is its format's name, ``refused`` what could not be read, in words.

    ``name`` is the file's, without endings and unlike any other file's: what a session without an id is called.
    """

    path: Path
    name: str
    source: str
    tally: Tally
    max_context_tokens: int | None = None
    place: str = ""  # of the record that is read
    refused: list[str] = field(default_factory=list)

    def each(
        self, records: Iterable[Record], take: Callable[[Fields], Iterable[Session] | None]
    ) -> Iterator[Session]:
        """The sessions that ``take`` has of each record; what it cannot take is refused, and the next one read."""
        for record in records:
            self.place = record.place
            try:
                yield from take(record.fields()) or ()
            except BadProgram as bad:
                self.refuse(record.place, bad)

    def session(self, program_id: str = "", parent_id: str = "") -> Session:
        """Without an id it is called after the file, and from the second on after its record as well."""
        number = self.place.removeprefix("item ")
        own = f"{self.name}-{number}" if number not in ("", "1") else self.name
        return Session(program_id=program_id or own, source=self.source, path=self.path, parent_id=parent_id)

    def refuse(self, place: str, why: object) -> None:
        self.refused.append(f"{self.path}:{place}: {why}" if place else f"{self.path}: {why}")

    def told(self) -> Iterator[str]:
        """What was refused since it was asked last."""
        told, self.refused = self.refused, []
        yield from told


Reader = Callable[[Iterator[Record], Reading], Iterator[Session | ProgramLine]]
