"""Cut a reply's body into its JSON documents as it passes by, in bounded memory: one, one a line, or one an event.

A short document is decoded at its end. A long one, such as a body with 5 MB of ``top_logprobs`` or an event with an
image, is parsed piece by piece, and of its fields only those in ``FIELDS`` stay.
"""

from collections.abc import Generator, Iterator
from typing import Any

import msgspec
from ijson import JSONError
from ijson.backends import yajl2_c
from ijson.utils import coroutine

from controlplane.tool_calls.calls import MOST_CHARACTERS

_SHORT = 1 << 15  # bytes: decoded within a millisecond, whatever it is made of
_MOST_TOKEN = 1 << 23  # bytes of one string, of which the parser makes one whole
_MOST_VALUES = 10_000  # of a long document that stay
_DATA, _DONE = b"data:", b"[DONE]"
_OPENING, _CLOSING = ("start_map", "start_array"), ("end_map", "end_array")
_decode = msgspec.json.Decoder().decode

_FIELDS = """
action arguments cache_creation_input_tokens cache_read_input_tokens cached_tokens choices cmd command commands
completion_tokens content content_block custom delta done done_reason end_turn environment error execution
finish_reason function function_call id index input input_tokens input_tokens_details item matched matched_stop
message meta_info name object output output_tokens partial_json phase prompt_tokens prompt_tokens_details
refusal response script status stop_reason text tool_calls type usage
"""
FIELDS = frozenset(_FIELDS.split())
"""The names of all fields, at any depth, from which ``reply_forms`` learns anything."""


class Documents:
    """The documents of one body, by its content type. ``feed`` and ``end`` raise ValueError for what is no JSON.

    ``is_complete``: nothing is missing, as a JSON text shows by itself, and OpenAI's streams by a last word.
    """

    def __init__(self, content_type: str) -> None:
        kind = content_type.lower()
        self._events = "event-stream" in kind
        self._lines = self._events or any(word in kind for word in ("ndjson", "jsonl", "json-seq"))
        self._document = _Document()
        self._rest = b""  # the beginning of a line that goes on
        self._within = False  # a line whose beginning was taken
        self._counts = False  # that line belongs to the document
        self.is_complete = not self._lines

    def feed(self, data: bytes) -> Iterator[Any]:
        """Take the next piece, wherever it was cut, and give the documents that it completes."""
        if not self._lines:
            self._document.add(data)
            return
        data, half = self._rest + data, b""
        if b"\r" in data:
            if data.endswith(b"\r"):  # perhaps half of a line's end
                data, half = data[:-1], b"\r"
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._part(line)
            self._within = False
            if self._counts:
                self._document.add(b"\n")
            if not (line and self._events):
                yield from self._take()
        if self._within or len(rest) > _SHORT:
            self._part(rest)
            rest = b""
        self._rest = rest + half

    def end(self) -> Iterator[Any]:
        """The body is complete: give the document whose end nothing has told."""
        self._part(self._rest.removesuffix(b"\r"))
        yield from self._take()

    def _part(self, part: bytes) -> None:
        """Take a line, or the next part of a long one."""
        if not self._within:
            self._within = True
            self._counts = not self._events or part.startswith(_DATA)
            part = part[len(_DATA) :] if self._events else part
        if self._counts:
            self._document.add(part)

    def _take(self) -> Iterator[Any]:
        document = self._document
        if not document.size:
            return
        self._document = _Document()
        if document.is_long:
            yield document.value()
            return
        text = document.text()
        if text == _DONE:
            self.is_complete = True
        elif text and (text[0] in b"{[" or not self._events):
            yield document.value()


class _Document:
    """One JSON text that comes in pieces."""

    __slots__ = ("_long", "_pieces", "size")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._long: _Long | None = None
        self.size = 0

    @property
    def is_long(self) -> bool:
        return self._long is not None

    def add(self, piece: bytes) -> None:
        self.size += len(piece)
        if self._long is not None:
            self._long.add(piece)
            return
        self._pieces.append(piece)
        if self.size > _SHORT:
            self._long = _Long()
            self._long.add(b"".join(self._pieces))
            self._pieces = []

    def text(self) -> bytes:
        return b"".join(self._pieces).strip()

    def value(self) -> Any:
        return _decode(self.text()) if self._long is None else self._long.value()


class _Long:
    """A document that is parsed while it comes."""

    def __init__(self) -> None:
        self._root: list[Any] = []
        self._unfinished = 0  # bytes since the parser last found anything
        self._parser = yajl2_c.basic_parse_coro(self._build(), use_float=True)

    def add(self, piece: bytes) -> None:
        if not piece:
            return  # to the parser that would be the end
        self._unfinished += len(piece)
        try:
            self._parser.send(piece)
        except JSONError as error:
            raise ValueError("a reply is no JSON") from error
        if self._unfinished > _MOST_TOKEN:
            raise ValueError("a string in a reply is too long")

    def value(self) -> Any:
        try:
            self._parser.close()
        except JSONError as error:
            raise ValueError("a reply is no JSON") from error
        return self._root[0] if self._root else None

    @coroutine  # type: ignore[untyped-decorator]
    def _build(self) -> Generator[None, tuple[str, Any], None]:
        """Build the value that the parser's events tell of, without the fields that tell nothing."""
        within: list[Any] = [self._root]
        key, is_wanted, skipped, values = "", True, 0, 0
        while True:
            event, value = yield
            self._unfinished = 0
            if skipped:
                skipped += (event in _OPENING) - (event in _CLOSING)
            elif event == "map_key":
                key, is_wanted = value, value in FIELDS
            elif event in _CLOSING:
                within.pop()
            elif not is_wanted:
                skipped, is_wanted = int(event in _OPENING), True
            else:
                values += 1
                if values > _MOST_VALUES:
                    raise ValueError("a reply has too many values")
                into = within[-1]
                made = {} if event == "start_map" else [] if event == "start_array" else _bounded(value)
                if isinstance(into, dict):
                    into[key] = made
                else:
                    into.append(made)
                if event in _OPENING:
                    within.append(made)


def _bounded(value: Any) -> Any:
    return value[: MOST_CHARACTERS + 1] if isinstance(value, str) else value
