"""Measure a prompt: its text in bytes, and what its images, recordings and files suggest in tokens.

One walk over the body of any API: OpenAI's chat, completions and responses, Anthropic's messages, SGLang's and
vLLM's own, Ollama's. A part is known by its ``type`` or by the key that it stands under; the tables below have all
of them, and a new form is one line there. What no template renders (ids, signatures, encrypted reasoning) does not
count. Text is text, whatever it looks like.
"""

import base64
import binascii
import contextlib
import io
import re
import struct
import wave
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import imagesize  # type: ignore[import-untyped]

from controlplane.core.estimators.prompt_size import MEDIA
from controlplane.core.model.text import sanitize
from controlplane.gate import outlines
from controlplane.gate.outlines import (
    BEGINS,
    BILLING,
    BILLING_HEADER,
    IMAGE,
    MESSAGE,
    REASONING,
    RESULT,
    SYSTEM,
    TOOL,
    Outline,
)

_HEAD = ("tools", "functions", "system", "instructions")  # what a template puts before the messages
_TURNS = ("messages", "input", "prompt", "text", "input_ids", "token_ids", "instances", "inputs")
_ATTACHMENTS = ("image_data", "audio_data", "video_data", "prompt_embeds", "multi_modal_data", "images")
_IMAGE, _AUDIO, _VIDEO, _FILE = range(len(MEDIA))
_TEXT, _NOTHING = -1, -2

_BY_TYPE = {
    "image": _IMAGE, "image_url": _IMAGE, "input_image": _IMAGE, "image_file": _IMAGE, "image_pil": _IMAGE,
    "image_embeds": _IMAGE, "image_generation_call": _IMAGE, "computer_screenshot": _IMAGE,
    "audio": _AUDIO, "audio_url": _AUDIO, "input_audio": _AUDIO, "audio_embeds": _AUDIO,
    "video": _VIDEO, "video_url": _VIDEO, "input_video": _VIDEO,
    "file": _FILE, "file_url": _FILE, "input_file": _FILE, "document": _FILE, "container_upload": _FILE,
    "redacted_thinking": _NOTHING, "compaction": _NOTHING,
}  # fmt: skip
_BY_KEY = {
    "image_url": _IMAGE, "image_data": _IMAGE, "images": _IMAGE, "image_embeds": _IMAGE, "prompt_embeds": _IMAGE,
    "audio_url": _AUDIO, "audio_data": _AUDIO, "input_audio": _AUDIO, "audios": _AUDIO, "audio_embeds": _AUDIO,
    "video_url": _VIDEO, "video_data": _VIDEO, "videos": _VIDEO,
    "file_data": _FILE, "file_url": _FILE,
}  # fmt: skip
_BY_MIME = {"image": _IMAGE, "audio": _AUDIO, "video": _VIDEO, "application": _FILE}
_TEXT_KEYS = frozenset(("text", "content", "output", "arguments", "thinking", "reasoning", "reasoning_content"))
_UNSEEN = frozenset(
    ("type", "role", "id", "status", "call_id", "tool_call_id", "tool_use_id", "cache_control", "signature",
     "encrypted_content", "thought_signature", "thoughtSignature", "extra_content", "container")
)  # fmt: skip
_TOKEN_IDS = "input_ids"
_NUMBER_CHARACTERS = 4  # of a number as text, with its comma
_JSON_CHARACTERS = 4  # around a key: quotes, a colon, a comma
_RENDERED = frozenset(("tools", "functions", "input", "parameters", "input_schema", "json_schema"))
_MIME_KEYS = ("media_type", "mime_type", "mimeType")
_BLOB_KEYS = frozenset(("data", "blob", "b64_json", "bytes"))
_MARKED = frozenset(_MIME_KEYS) | _BLOB_KEYS | _BY_KEY.keys()
_DATA_URL = re.compile(r"data:([a-z]+)/[\w.+-]+(?:;[\w.+=-]+)*;base64,", re.ASCII)
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]+={0,2}", re.ASCII)
_BASE64_LOOK = 256  # characters that are looked at
_LEAST_BLOB = 1024  # characters; what is shorter may be a name, and costs little either way

_TOOLS = ("tools", "functions")
_SYSTEM_ROLES, _TOOL_ROLES = ("system", "developer"), ("tool", "function")
_REASONING_KEYS = frozenset(("reasoning_content", "reasoning", "thinking"))
_KINDS: dict[Any, int] = {name: IMAGE for name, kind in _BY_TYPE.items() if kind == _IMAGE}
_KINDS |= dict.fromkeys(("thinking", "redacted_thinking", "reasoning"), REASONING)
_KINDS |= dict.fromkeys(
    ("tool_result", "function_call_output", "custom_tool_call_output", "local_shell_call_output", "mcp_tool_result",
     "shell_call_output", "computer_call_output", "web_search_tool_result", "code_execution_tool_result"), RESULT
)  # fmt: skip
_BYTES_A_TOKEN = 4  # only to weigh images against text
_STORED = ("previous_response_id", "conversation")
_SLICE = 4096  # characters: a plain prompt is compared in so many parts
_MOST_SLICES = 1024
_WHOLE_HASH = 1 << 20  # characters: of what is longer a sample is compared
_SAMPLE = 4096
_MOST_DEPTH = 16  # of an image or a recording within what wraps it
_HEADER = 1 << 16  # characters of an encoded image or recording that have its header

_PATCH = 28  # pixels: an image costs a token for each such square, as most models' do, unless the model is listed
_MOST_IMAGE = 16_384  # tokens
_PATCHES = {"qwen3": 32, "pixtral": 16}
_FIXED = {"gemma": 256, "llava": 576, "phi": 625, "minicpm": 640}
_UNSEEN_TOKENS = (1024, 750, 2000, 2000)  # of what is only referred to: an image, a recording, a film, a file
_AUDIO_TOKENS_A_SECOND = 25.0
_AUDIO_BYTES_A_SECOND = {"wav": 32_000.0, "pcm16": 48_000.0, "flac": 24_000.0, "mp3": 16_000.0, "opus": 4_000.0}
_VIDEO_BYTES_A_TOKEN = 500.0
_FILE_BYTES_A_TOKEN = 100.0
_EMBEDDING_BYTES = 8192  # of one token: 4,096 numbers of 16 bits

Media = tuple[int, int, int, int]
_NO_MEDIA: Media = (0, 0, 0, 0)


@dataclass(slots=True)
class Prompt:
    """A prompt, measured part by part: what stands before the messages, then each message.

    ``chain[i]`` is equal for two prompts of this process if their first i + 1 parts are; ``text[i]`` and
    ``media[i]`` are sums over those parts.
    """

    model: str = ""
    tokens: int = 0  # where it came as token ids
    is_stored: bool = False  # the server has what is before it, of which the request says nothing
    chain: list[int] = field(default_factory=list)
    text: list[int] = field(default_factory=list)
    media: list[Media] = field(default_factory=list)
    outline: Outline = field(default_factory=Outline)

    @property
    def text_bytes(self) -> int:
        return self.text[-1] if self.text else 0

    def add(self, fingerprint: int, text_bytes: int, media: Media) -> None:
        if self.chain:
            fingerprint, text_bytes = hash((self.chain[-1], fingerprint)), self.text[-1] + text_bytes
            media = self.media[-1] if media is _NO_MEDIA else _plus(self.media[-1], media)
        self.chain.append(fingerprint)
        self.text.append(text_bytes)
        self.media.append(media)


def measure(body: Mapping[str, Any]) -> Prompt:
    """Measure a request's prompt. Takes some 2 ms for 1 MB of messages; the size of a blob does not count."""
    model = body.get("model")
    walk = _Walk(sanitize(model) if isinstance(model, str) else "")
    prompt = Prompt(model=walk.model)
    prompt.outline.model = hash(walk.model) & 0xFFFF_FFFF
    attachments = {name: body[name] for name in _ATTACHMENTS if body.get(name)}
    _add(prompt, walk, [*_head(body), (SYSTEM, [("", attachments)], BEGINS)] if attachments else _head(body))
    for number, (key, part) in enumerate(_turns(body)):
        _add(prompt, walk, _pieces(key, part, first=not number))
    prompt.is_stored = "messages" not in body and any(body.get(name) for name in _STORED)
    prompt.tokens = walk.tokens
    prompt.outline.of_system(_system_texts(body))
    return prompt


# Kind, what is in it, and ``BEGINS`` if that is a component's first.
_Pieces = list[tuple[int, list[tuple[str, Any]], int]]


def _add(prompt: Prompt, walk: "_Walk", pieces: _Pieces) -> None:
    """One part of the prompt. Claude Code's first line differs with each request, and engines leave it out."""
    add = prompt.outline.add
    seen, text_bytes, media = [], 0, _NO_MEDIA
    for kind, pending, begins in pieces:
        fingerprint, size, of_media = walk.part(pending)
        add(kind | begins, fingerprint, size if of_media is _NO_MEDIA else size + sum(of_media) * _BYTES_A_TOKEN)
        if kind != BILLING:
            seen.append(fingerprint)
            text_bytes += size
            media = of_media if media is _NO_MEDIA else _plus(media, of_media)
    prompt.add(seen[0] if len(seen) == 1 else hash(tuple(seen)), text_bytes, media)


def _head(body: Mapping[str, Any]) -> _Pieces:
    """The tools, each by itself, and the system prompt in slices."""
    pieces: _Pieces = []
    for name in _HEAD:
        value = body.get(name)
        for each in value if isinstance(value, list) else () if value is None else (value,):
            if name in _TOOLS:
                pieces.append((TOOL, [(name, each)], BEGINS))
            else:
                pieces += _system_pieces(name, each)
    return pieces


def _system_pieces(key: str, value: Any) -> _Pieces:
    """Of one block of the system prompt, or of a message that is one."""
    text = _only_text(value)
    if text is None:
        return [(SYSTEM, [(key, value)], BEGINS)]
    if text.startswith(BILLING_HEADER):
        return [(BILLING, [("text", text)], BEGINS)]
    return [
        (SYSTEM, [("text", part)], 0 if number else BEGINS) for number, part in enumerate(outlines.slices(text))
    ]


def _only_text(value: Any) -> str | None:
    """The text of a block or a message that has nothing else."""
    if isinstance(value, dict) and _UNSEEN.issuperset(value.keys() - _TEXT_KEYS):
        texts = [inner for name, inner in value.items() if name in _TEXT_KEYS]
        value = texts[0] if len(texts) == 1 else None
    return value if isinstance(value, str) else None


def _system_texts(body: Mapping[str, Any]) -> Iterator[str]:
    messages = body.get("messages") or body.get("input")
    first = messages[0] if isinstance(messages, list) and messages else None
    for value in (body.get("system"), body.get("instructions"), first if _is_system(first) else None):
        for each in value if isinstance(value, list) else (value,):
            if each is not None:
                yield _only_text(each) or ""


def _is_system(part: Any) -> bool:
    return isinstance(part, dict) and part.get("role") in _SYSTEM_ROLES


def _pieces(key: str, part: Any, *, first: bool) -> _Pieces:
    """Of a message: its text, results of tools, reasoning and images apart where it has several."""
    if type(part) is not dict:
        return [(MESSAGE, [(key, part)], BEGINS)]
    if first and _is_system(part):
        return _system_pieces(key, part)
    kind, content = _kind_of(part, RESULT if part.get("role") in _TOOL_ROLES else MESSAGE), part.get("content")
    groups: dict[int, list[tuple[str, Any]]] = {}
    for each in content if type(content) is list else ():
        of = _kind_of(each, kind)
        if of in groups:
            groups[of].append(("content", each))
        else:
            groups[of] = [("content", each)]
    if _REASONING_KEYS.isdisjoint(part):
        if len(groups) < 2:
            return [(next(iter(groups), kind), [(key, part)], BEGINS)]
        rest = {name: value for name, value in part.items() if name not in _UNSEEN and name != "content"}
    else:
        groups.setdefault(REASONING, []).extend((name, part[name]) for name in _REASONING_KEYS if name in part)
        left_out = _REASONING_KEYS | {"content"} if type(content) is list else _REASONING_KEYS
        rest = {name: value for name, value in part.items() if name not in left_out}
    if rest:
        groups.setdefault(kind, []).append((key, rest))
    pieces = [(of, pending, 0) for of, pending in groups.items()]
    pieces[0] = (*pieces[0][:2], BEGINS)
    return pieces


def _kind_of(part: Any, otherwise: int) -> int:
    name = part.get("type") if type(part) is dict else None
    return _KINDS.get(name, otherwise) if type(name) is str else otherwise


def _turns(body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name in _TURNS:
        value, key = body.get(name), _TOKEN_IDS if name in ("prompt", "input_ids", "token_ids") else "content"
        if isinstance(value, str):
            size = max(_SLICE, -(-len(value) // _MOST_SLICES // _SLICE) * _SLICE)
            for at in range(0, len(value), size):
                yield name, value[at : at + size]
        elif name == "text" and isinstance(value, dict):
            continue  # Responses' form of the answer
        elif isinstance(value, list) and value and type(value[0]) is not int:
            for each in value:
                yield key, each
        elif value:
            yield key, value


class _Walk:
    def __init__(self, model: str) -> None:
        self.model = model
        self.tokens = 0
        self._seen: list[str | int | float] = []  # what the part's fingerprint is made of
        self._media: Media = _NO_MEDIA

    def part(self, pending: list[tuple[str, Any]]) -> tuple[int, int, Media]:
        """The part's fingerprint, its bytes of text, and its media in tokens."""
        seen = self._seen = []
        text_bytes = 0
        while pending:
            key, value = pending.pop()
            if type(value) is str:
                size = len(value)
                if size < _LEAST_BLOB:
                    seen.append(value)
                    text_bytes += size if value.isascii() else _bytes(value)
                else:
                    text_bytes += self._long(key, value)
            elif type(value) is dict:
                text_bytes += self._object(key, value, pending)
            elif type(value) is list:
                if key == _TOKEN_IDS and value and type(value[0]) is int:
                    self.tokens += len(value)
                else:
                    pending += [(key, each) for each in value]
            elif type(value) is int or type(value) is float:
                seen.append(value)
                text_bytes += _NUMBER_CHARACTERS
        media, self._media = self._media, _NO_MEDIA
        return hash(tuple(seen)), text_bytes, media

    def _long(self, key: str, value: str) -> int:
        self._see(value)
        if key not in _TEXT_KEYS and key not in _RENDERED:
            if found := _DATA_URL.match(value, 0, _BASE64_LOOK):
                return self._blob(_BY_MIME.get(found[1], _TEXT), value, "")
            if key in _BLOB_KEYS and _BASE64.fullmatch(value, 0, _BASE64_LOOK):
                return self._blob(_FILE, value, "")
        return _bytes(value)

    def _object(self, key: str, value: dict[str, Any], pending: list[tuple[str, Any]]) -> int:
        if key in _RENDERED:  # as JSON, all the way down
            self._seen += value
            pending += [(key, inner) for inner in value.values()]
            return sum(map(len, value)) + _JSON_CHARACTERS * len(value)
        of_type, size = value.get("type"), 0
        kind = _BY_TYPE.get(of_type) if isinstance(of_type, str) else None
        if kind is not None or not _MARKED.isdisjoint(value):
            mime = _mime(value)
            if kind is None and mime and not _BLOB_KEYS.isdisjoint(value):
                kind = _BY_MIME.get(mime.partition("/")[0], _TEXT)
            if kind == _NOTHING:
                return 0
            if kind is not None:
                return self._medium(kind, value, mime, pending)
            marked = {name: inner for name, inner in value.items() if name in _BY_KEY and inner}
            value = {name: inner for name, inner in value.items() if name not in marked}
            size = sum(self._medium(_BY_KEY[name], inner, mime, pending) for name, inner in marked.items())
        pending += [(name, inner) for name, inner in value.items() if name not in _UNSEEN]
        return size

    def _medium(self, kind: int, value: Any, mime: str, pending: list[tuple[str, Any]]) -> int:
        """Count an image, a recording, a film or a file; or its text, where it is a document of text."""
        source = value.get("source") if isinstance(value, dict) else None
        if isinstance(source, dict) and source.get("type") in ("text", "content"):
            pending.extend((("text", source.get("data")), ("content", source.get("content"))))
            return 0
        text_bytes, hint = 0, str(value.get("type", "")) if isinstance(value, dict) else ""
        for payload, own_mime, form in _payloads(value, mime):
            self._see(payload)
            if own_mime.startswith("text/") or own_mime == "application/json":
                text_bytes += len(payload) * 3 // 4
            else:
                text_bytes += self._blob(kind, payload, f"{hint} {form}")
        return text_bytes

    def _blob(self, kind: int, payload: str, form: str) -> int:
        """Its tokens; of text that is encoded, its bytes."""
        if kind == _TEXT:
            return len(payload) * 3 // 4
        more = [0, 0, 0, 0]
        more[kind] = max(1, round(_suggested(kind, payload, form, self.model)))
        self._media = _plus(self._media, more)
        return 0

    def _see(self, value: str) -> None:
        if len(value) > _WHOLE_HASH:
            middle = len(value) // 2
            self._seen += [len(value), value[:_SAMPLE], value[middle : middle + _SAMPLE], value[-_SAMPLE:]]
        else:
            self._seen.append(value)


def _mime(value: dict[str, Any]) -> str:
    return next((value[name] for name in _MIME_KEYS if isinstance(value.get(name), str)), "")


def _payloads(value: Any, mime: str, form: str = "", depth: int = 0) -> Iterator[tuple[str, str, str]]:
    """The blobs or references in a part: each with its MIME type and what says its form."""
    if depth > _MOST_DEPTH:
        return
    if isinstance(value, str):
        found = _DATA_URL.match(value, 0, _BASE64_LOOK)
        yield value, found[0][5:].partition(";")[0] if found else mime, form
    elif isinstance(value, list):
        for each in value:
            yield from _payloads(each, mime, form, depth + 1)
    elif isinstance(value, dict):
        mime = _mime(value) or mime
        form = str(value.get("format") or form)
        inner = [
            each for name, each in value.items() if name not in _UNSEEN and isinstance(each, dict | list) and each
        ]
        texts = [each for each in value.values() if isinstance(each, str)]
        longest = max(texts, key=len, default="")
        if inner and len(longest) < _LEAST_BLOB:
            for each in inner:
                yield from _payloads(each, mime, form, depth + 1)
        elif longest:
            yield from _payloads(longest, mime, form, depth + 1)


def _suggested(kind: int, payload: str, form: str, model: str) -> float:
    """What a blob of that form usually costs, in tokens."""
    if len(payload) < _LEAST_BLOB and not payload.startswith("data:"):
        return _UNSEEN_TOKENS[kind]
    begin = payload.find(",", 0, _BASE64_LOOK) + 1
    encoded = payload[begin : begin + _HEADER]
    size = len(payload) * 0.75
    if "embeds" in form:
        return size / _EMBEDDING_BYTES
    if kind == _IMAGE:
        return _image_tokens(_decoded(encoded), model)
    if kind == _AUDIO:
        return _AUDIO_TOKENS_A_SECOND * _seconds(_decoded(encoded), size, form + payload[:_BASE64_LOOK])
    return size / (_VIDEO_BYTES_A_TOKEN if kind == _VIDEO else _FILE_BYTES_A_TOKEN)


def _image_tokens(header: bytes, model: str) -> float:
    name = model.lower()
    for part, tokens in _FIXED.items():
        if part in name:
            return tokens
    width = height = -1
    patch = next((each for part, each in _PATCHES.items() if part in name), _PATCH)
    with contextlib.suppress(ValueError, struct.error, OSError, TypeError, IndexError):
        width, height = imagesize.get(io.BytesIO(header))
    if width <= 0 or height <= 0:
        return _UNSEEN_TOKENS[_IMAGE]
    return float(min(_MOST_IMAGE, ceil(width / patch) * ceil(height / patch)))


def _seconds(header: bytes, size: float, form: str) -> float:
    if header[:4] == b"RIFF":
        try:
            with wave.open(io.BytesIO(header)) as recording:
                a_second: int = recording.getframerate() * recording.getnchannels() * recording.getsampwidth()
                return size / a_second
        except (wave.Error, EOFError, ZeroDivisionError, RuntimeError):
            pass
    return size / next((rate for name, rate in _AUDIO_BYTES_A_SECOND.items() if name in form), 16_000.0)


def _decoded(encoded: str) -> bytes:
    try:
        return base64.b64decode(encoded[: len(encoded) // 4 * 4], altchars=b"-_" if "_" in encoded else None)
    except (binascii.Error, ValueError):
        return b""


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _plus(some: Iterable[int], more: Iterable[int]) -> Media:
    return tuple(map(int.__add__, some, more))  # type: ignore[return-value]
