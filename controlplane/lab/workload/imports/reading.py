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
    """One file as it is read. ``source`` is its format's name, ``refused`` what could not be read, in words."""

    path: Path
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
        """Without an id it is called after the file, and its record where that is one of many."""
        stem = self.path.name.split(".")[0] or self.path.name
        name = program_id or "-".join(filter(None, (stem, self.place.removeprefix("item "))))
        return Session(program_id=name, source=self.source, parent_id=parent_id)

    def refuse(self, place: str, why: object) -> None:
        where = f"{self.path}:{place}" if place else str(self.path)
        self.refused.append(f"{where}: {why}" if self.source else str(why))

    def told(self) -> Iterator[str]:
        """What was refused since it was asked last."""
        told, self.refused = self.refused, []
        yield from told


Reader = Callable[[Iterator[Record], Reading], Iterator[Session | ProgramLine]]
