"""An outline of a prompt, and where two of them part: the first component that differs, by digests alone.

No text is kept. A component is a tool, a block of the system prompt or a message; it has a piece for each part of
another kind, such as an image or reasoning, and long system prompts have one for each slice, so that the place of a
difference is known to within one.
"""

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from operator import add

from controlplane.core.model.causes import Cause, Change

TOOL, SYSTEM, BILLING, MESSAGE, RESULT, REASONING, IMAGE = range(7)
_SYSTEM, _MESSAGES = (SYSTEM, BILLING), (MESSAGE, RESULT, REASONING, IMAGE)
_GROUPS = ((TOOL,), _SYSTEM, _MESSAGES)
BEGINS = 0x80  # beside the kind: the piece is the first of its component
_GROUP_OF = bytes(
    next((number for number, group in enumerate(_GROUPS) if kind & ~BEGINS in group), 0) for kind in range(256)
)
MOST_PIECES = 400  # of what is remembered of one program, at 9 bytes each
_DIGEST = 0xFFFF_FFFF
_LEAST_SLICED, _MOST_SLICES = 1024, 16  # characters of a system prompt; slices of it
_MOST_BLOCKS = 64  # of a system prompt, in which it is known what changes by itself
_COMPACTED_RATIO = 0.5  # a summary is shorter than that of what it stands for

BILLING_HEADER = "x-anthropic-billing-header"
VOLATILE = re.compile(
    rf"(?P<billing>{BILLING_HEADER}[^\n]*)"
    r"|(?P<id>\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b)"
    r"|(?P<time>\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?: ?Z|[+-]\d\d:?\d\d)?"
    r"|\b\d\d?:\d\d(?::\d\d)?(?: ?[AaPp][Mm])?\b|\b1[6-9]\d{8}(?:\d{3})?\b)"
    r"|(?P<date>\b\d{4}-\d\d-\d\d\b"
    r"|\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]{0,6},? [A-Za-z0-9]{1,9},? [A-Za-z0-9]{1,9}(?:,? \d{4})?\b"
    r"|\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6} \d{1,2}(?:,? \d{4})?\b)"
    r"|(?P<count>(?<![\d,])\d[\d,]*+(?: ?/ ?[\d,]++)? (?:tokens?|messages?)\b"
    r"|\b(?:[Tt]okens?|[Bb]udget|[Cc]ontext)\b[^\n\d]{0,32}[\d,]+(?: ?/ ?[\d,]+)?)"
)
"""What changes by itself in a system prompt: by the group's name, which a line may have several of.

It takes time in proportion to the text, whatever that is made of: a run of digits is read once.
"""
_DIGIT = re.compile(r"\d")
MOST_LOOKED_AT = 1024  # characters of a line
_MOST_LINES_OF_ONE = 2048  # of a system prompt; the rest counts as one
_MOST_LINES = 8192
_LINES: dict[int, tuple[int, str]] = {}  # by digest: what was found in it
_NAMES = {"billing": "billing header", "id": "an id", "time": "a time", "date": "a date", "count": "a count"}


@dataclass(slots=True)
class Outline:
    """``kinds``, ``digests`` and ``lengths`` (bytes of text, or as many as an image weighs) are by piece.

    ``model`` and ``still`` are digests: of the model's name, and of the system prompt without what changes by
    itself; ``volatile`` names that, block by block. Each piece stands for ``1 << level`` of the prompt's, or for
    the rest; of messages it has ``count``, once it is ``bounded``.
    """

    model: int = 0
    still: int = 0
    volatile: tuple[str, ...] = ()
    level: int = 0
    count: int = 0
    kinds: bytearray = field(default_factory=bytearray)
    digests: "array[int]" = field(default_factory=lambda: array("I"))
    lengths: "array[int]" = field(default_factory=lambda: array("I"))

    def add(self, kind: int, fingerprint: int, length: int) -> None:
        """One more piece; ``kind`` with ``BEGINS`` if it is the first of its component."""
        self.kinds.append(kind)
        self.digests.append(fingerprint & _DIGEST)
        self.lengths.append(length & _DIGEST)

    def of_system(self, texts: Iterable[str]) -> None:
        """Look at the system prompt, block by block; only lines with digits can change by themselves."""
        still, names = list[int](), list[str]()
        for text in texts:
            name = ""
            for line in text.split("\n", max(0, _MOST_LINES_OF_ONE - len(still))):
                digest, of_line = _looked_at(line)
                still.append(digest)
                name = name or of_line
            names.append(name)
        del names[_MOST_BLOCKS:]
        self.still, self.volatile = hash(tuple(still)) & _DIGEST, tuple(names) if any(names) else ()

    def folded(self, level: int, tail: int = 0) -> "Outline":
        """The same, with ``1 << level`` pieces in one; none of these spans the end of ``tail`` pieces of messages.

        Two pieces become one, however often: so it is the same in however many steps.
        """
        if level == self.level:
            return self
        made = Outline(model=self.model, still=self.still, volatile=self.volatile, level=level, count=self.count)
        for start, end in _runs(self.kinds, tail):
            digests, lengths = self.digests[start:end].tolist(), self.lengths[start:end].tolist()
            for _ in range(level - self.level):
                odd = len(digests) - len(digests) % 2
                pairs = zip(digests[:odd:2], digests[1:odd:2], strict=True)
                digests = [hash(pair) & _DIGEST for pair in pairs] + digests[odd:]
                lengths = list(map(add, lengths[:odd:2], lengths[1:odd:2])) + lengths[odd:]
            made.kinds += self.kinds[start : end : 1 << (level - self.level)]
            made.digests.extend(digests)
            made.lengths.extend([min(each, _DIGEST) for each in lengths])
        return made

    def bounded(self, most: int) -> "Outline":
        """What is remembered of it: ``most`` pieces at most."""
        made = replace(self, count=len(self.kinds) - _begins_at(self.kinds)[1])
        while len(made.kinds) > most and len(made.kinds) > len(_GROUPS):
            made = made.folded(made.level + 1)
        return made


def _begins_at(kinds: bytearray) -> tuple[int, int]:
    """Where, behind the tools, the system prompt begins, and where the messages."""
    groups = kinds.translate(_GROUP_OF)
    messages = groups.find(_GROUPS.index(_MESSAGES))
    messages = len(kinds) if messages < 0 else messages
    system = groups.find(_GROUPS.index(_SYSTEM), 0, messages)
    return messages if system < 0 else system, messages


def _runs(kinds: bytearray, tail: int) -> Iterator[tuple[int, int]]:
    """Tools, system prompt and messages, of which the first ``tail`` are by themselves."""
    system, messages = _begins_at(kinds)
    bounds = (0, system, messages, min(messages + tail, len(kinds)), len(kinds))
    yield from ((start, end) for start, end in pairwise(bounds) if start < end)


def _looked_at(line: str) -> tuple[int, str]:
    """The digest of a line without what changes by itself, and the name of that; found once for each line."""
    if _DIGIT.search(line) is None:
        return hash(line), ""
    key = hash(line)
    if (known := _LINES.get(key)) is None:
        head = line[:MOST_LOOKED_AT]
        found = VOLATILE.search(head)
        known = key, ""
        if found is not None:
            known = hash((VOLATILE.sub("", head), line[MOST_LOOKED_AT:])), _NAMES[str(found.lastgroup)]
        if len(_LINES) >= _MOST_LINES:
            _LINES.clear()
        _LINES[key] = known
    return known


def slices(text: str) -> Iterator[str]:
    """A long system prompt in pieces whose bounds stay where its length changes little."""
    size = len(text)
    if size >= _LEAST_SLICED:
        size = 1 << max(8, (size // _MOST_SLICES).bit_length())
    for at in range(0, len(text), max(1, size)):
        yield text[at : at + size]


def difference(before: Outline, now: Outline) -> Change:
    """Where ``now``, not folded, parts from ``before``, and what its client did there; nothing if all differs."""
    if before.model != now.model:
        return Change(change=Cause.MODEL, change_at="model")
    folded = now.folded(before.level, before.count)
    starts = [at for start, end in _runs(now.kinds, before.count) for at in range(start, end, 1 << before.level)]
    (tools, system, rest), (new_tools, new_system, new_rest) = _groups(before), _groups(folded)
    system_at, rest_at = len(new_tools), len(new_tools) + len(new_system)
    found: list[tuple[int, Cause, str]] = []  # bytes before the difference, whichever of both a template puts first
    if system != new_system:
        same = _same(system, new_system)
        cause, where = Cause.SYSTEM, _place("system", now, starts[system_at:rest_at], same)
        name = _volatile_at(now, where) or _volatile_at(before, where)
        if before.still == now.still and name:
            cause, where = Cause.VOLATILE, f"{where} ({name})"
        found.append((_size(system[:same]), cause, where))
    if tools != new_tools:
        same = _same(tools, new_tools)
        where = _place("tools", now, starts[:system_at], same).partition(" ")[0]
        found.append((_size(tools[:same]), _of_tools(tools, new_tools), where))
    same = _same(rest, new_rest)
    if found and rest and not same and rest[0][1] not in {digest for _, digest, _ in new_rest}:
        return Change()  # another conversation, under the same name
    if not found:
        kept = _size(tools) + _size(system) + _size(rest[:same])
        if same < min(len(rest), len(new_rest)):
            where = _place("messages", now, starts[rest_at:], same)
            found.append((kept, _in_messages(rest[same:], new_rest[same:]), where))
        else:  # it goes on, or goes back
            found.append((kept, Cause.NONE, ""))
    kept, cause, where = min(found, key=lambda each: each[0])
    whole = sum(before.lengths)
    return Change(kept_ratio=min(1.0, kept / whole) if whole else 1.0, change=cause, change_at=where)


_Piece = tuple[int, int, int]  # kind, digest, length


def _groups(outline: Outline) -> tuple[list[_Piece], list[_Piece], list[_Piece]]:
    """The pieces of tools, of the system prompt, and of messages."""
    pieces = list(zip(outline.kinds, outline.digests, outline.lengths, strict=True))
    system, messages = _begins_at(outline.kinds)
    return pieces[:system], pieces[system:messages], pieces[messages:]


def _size(pieces: Iterable[_Piece]) -> int:
    return sum(length for _, _, length in pieces)


def _same(one: Sequence[_Piece], other: Sequence[_Piece]) -> int:
    """How many pieces both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (mine, theirs) in pairs if mine != theirs), min(len(one), len(other)))


def _of_tools(were: list[_Piece], are: list[_Piece]) -> Cause:
    old, new = sorted(were), sorted(are)
    if old == new:
        return Cause.TOOLS_REORDERED
    if set(old) <= set(new):
        return Cause.TOOLS_ADDED
    return Cause.TOOLS_REMOVED if set(new) <= set(old) else Cause.TOOLS


def _in_messages(were: list[_Piece], are: list[_Piece]) -> Cause:
    """What became of the messages from the first that differs."""
    kind, new_kind = were[0][0] & ~BEGINS, are[0][0] & ~BEGINS
    if REASONING in (kind, new_kind) or any(each[0] & ~BEGINS == REASONING for each in were):
        both = list(zip(_unreasoned(were), _unreasoned(are), strict=False))
        if all(one == other for one, other in both):
            return Cause.REASONING
    digests, new_digests = [each[1] for each in were], [each[1] for each in are]
    if digests[0] in new_digests[1:]:
        return Cause.INSERTED
    if new_digests[0] in digests[1:]:
        return Cause.DROPPED
    if len(are) < len(were) and _size(are) < _COMPACTED_RATIO * _size(were):
        return Cause.COMPACTED
    if IMAGE in (kind, new_kind):
        return Cause.IMAGE
    return Cause.RESULT if RESULT in (kind, new_kind) else Cause.EDITED


def _unreasoned(pieces: Iterable[_Piece]) -> list[tuple[int, int]]:
    """Without what is reasoning, and without regard to which piece is a component's first."""
    return [(kind & ~BEGINS, digest) for kind, digest, _ in pieces if kind & ~BEGINS != REASONING]


def _place(name: str, now: Outline, starts: Sequence[int], index: int) -> str:
    """``messages[3] bytes 0-512``: the component that piece ``index`` belongs to, and where in it that stands.

    ``starts``: where the pieces of that group are in ``now``.
    """
    if index >= len(starts):
        kinds = next((group for group, of in zip(_GROUPS, _GROUP_NAMES, strict=True) if of == name), ())
        return f"{name}[{sum(kind >= BEGINS and kind & ~BEGINS in kinds for kind in now.kinds)}]"
    at, first = starts[index], starts[0]
    end = starts[index + 1] if index + 1 < len(starts) else at + 1
    begins = [piece for piece in range(first, at + 1) if now.kinds[piece] >= BEGINS]
    begin = begins[-1] if begins else first
    before = sum(now.lengths[begin:at])
    return f"{name}[{max(0, len(begins) - 1)}] bytes {before}-{before + sum(now.lengths[at:end])}"


_GROUP_NAMES = ("tools", "system", "messages")


def _volatile_at(outline: Outline, where: str) -> str:
    """What changes by itself in the block of the system prompt that ``where`` names."""
    number = int(where.partition("[")[2].partition("]")[0])
    return outline.volatile[number] if number < len(outline.volatile) else ""
