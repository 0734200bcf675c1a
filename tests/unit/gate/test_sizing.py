"""Every form in which a prompt may carry something: text, an image, a recording or a file.

A new form is one line of ``FORMS``.
"""

import base64
import io
import os
import struct
import time
import wave
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.core.estimators.prompt_size import MEDIA
from controlplane.gate.outlines import VOLATILE
from controlplane.gate.sizing import measure


def png(width: int, height: int) -> bytes:
    """A whole PNG of one colour, padded to the size of a photograph."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows = zlib.compress(b"\0" * (height * (1 + 3 * width)))
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n"
        + head
        + chunk(b"IDAT", rows)
        + chunk(b"tEXt", os.urandom(300_000))
        + chunk(b"IEND", b"")
    )


def wav(seconds: int) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as recording:
        recording.setnchannels(1)
        recording.setsampwidth(2)
        recording.setframerate(16_000)
        recording.writeframes(os.urandom(32_000 * seconds))
    return file.getvalue()


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


IMAGE, SOUND, BLOB = encoded(png(560, 280)), encoded(wav(20)), encoded(os.urandom(300_000))
PNG_URL, WAV_URL = f"data:image/png;base64,{IMAGE}", f"data:audio/wav;base64,{SOUND}"
SOURCE = {"type": "base64", "media_type": "image/png", "data": IMAGE}
IMAGE_TOKENS, SOUND_TOKENS = 20 * 10, 20 * 25
LIKE_DATA = "data: 1,2,3 " + "real words " * 200
LIKE_URL = "data:image/png;base64," + "A" * 2000


def message(*parts: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts), **more}]}


def items(*parts: Any) -> dict[str, Any]:
    return {"input": list(parts)}


FORMS: list[tuple[str, dict[str, Any], int, dict[str, int | None]]] = [
    # what, body, bytes of text, media in tokens (None: some)
    ("chat: text", {"messages": [{"role": "user", "content": "abc"}]}, 3, {}),
    ("chat: text part", message({"type": "text", "text": "häh"}), 4, {}),
    ("chat: image, data URL",
     message({"type": "image_url", "image_url": {"url": PNG_URL}}), 0, {"image": IMAGE_TOKENS}),
    ("chat: image, bare string", message({"type": "image_url", "image_url": PNG_URL}), 0, {"image": IMAGE_TOKENS}),
    ("chat: image, link",
     message({"type": "image_url", "image_url": {"url": "http://h/a.png"}}), 0, {"image": None}),
    ("chat: without a type", message({"image_url": PNG_URL}), 0, {"image": IMAGE_TOKENS}),
    ("chat: audio", message({"type": "input_audio", "input_audio": {"data": SOUND, "format": "wav"}}), 0,
     {"audio": SOUND_TOKENS}),
    ("chat: audio_url", message({"type": "audio_url", "audio_url": {"url": WAV_URL}}), 0, {"audio": SOUND_TOKENS}),
    ("chat: video", message({"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{BLOB}"}}), 0,
     {"video": None}),
    ("chat: frames", message({"type": "video", "video": [PNG_URL, PNG_URL]}), 0, {"video": None}),
    ("chat: file", message({"type": "file", "file": {"filename": "a.pdf", "file_data": BLOB}}), 0, {"file": None}),
    ("chat: file of text", message(
        {"type": "file", "file": {"file_data": f"data:text/plain;base64,{encoded(b'word ' * 2000)}"}}), 10_019, {}),
    ("chat: embeddings", message({"type": "image_embeds", "image_embeds": BLOB}), 0, {"image": 37}),
    ("chat: embeddings, several", message({"type": "image_embeds", "image_embeds": {"image_embeds": BLOB}}), 0,
     {"image": 37}),
    ("chat: tool's text like a data URL",
     {"messages": [{"role": "tool", "content": LIKE_DATA}]}, len(LIKE_DATA), {}),
    ("chat: text that is a data URL", message({"type": "text", "text": LIKE_URL}), len(LIKE_URL), {}),
    ("chat: a call", {"messages": [{"role": "assistant", "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": '{"c": "ls"}'}}]}]}, 15, {}),
    ("chat: an unknown part with a blob",
     message({"type": "new", "new": {"mimeType": "audio/wav", "data": SOUND}}), 0,
     {"audio": SOUND_TOKENS}),
    ("chat: an unknown part with a data URL", message({"type": "new", "new": {"uri": PNG_URL}}), 0,
     {"image": IMAGE_TOKENS}),
    ("chat: Gemini's inline data", message({"inline_data": {"mime_type": "image/png", "data": IMAGE}}), 0,
     {"image": IMAGE_TOKENS}),
    ("chat: Gemini's signature",
     message({"type": "text", "text": "a"}, extra_content={"google": {"x": BLOB}}), 1, {}),
    ("Anthropic: image", message({"type": "image", "source": SOURCE}), 0, {"image": IMAGE_TOKENS}),
    ("Anthropic: cached", message({"type": "image", "source": SOURCE, "cache_control": {"type": "ephemeral"}}), 0,
     {"image": IMAGE_TOKENS}),
    ("Anthropic: link",
     message({"type": "image", "source": {"type": "url", "url": "http://h/a"}}), 0, {"image": None}),
    ("Anthropic: in a tool's result", message(
        {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image", "source": SOURCE}]}), 0,
     {"image": IMAGE_TOKENS}),
    ("Anthropic: document", message({"type": "document", "source": {**SOURCE, "media_type": "application/pdf"}}), 0,
     {"file": None}),
    ("Anthropic: document of text", message(
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "abc"}}), 3, {}),
    ("Anthropic: thinking", message({"type": "thinking", "thinking": "abc", "signature": BLOB}), 3, {}),
    ("Anthropic: redacted", message({"type": "redacted_thinking", "data": BLOB}), 0, {}),
    ("Anthropic: a call", message({"type": "tool_use", "id": "t", "name": "sh", "input": {"c": "ls"}}), 9, {}),
    ("Responses: text", items({"role": "user", "content": [{"type": "input_text", "text": "ab"}]}), 2, {}),
    ("Responses: image", items({"role": "user", "content": [{"type": "input_image", "image_url": PNG_URL}]}), 0,
     {"image": IMAGE_TOKENS}),
    ("Responses: file", items({"role": "user", "content": [{"type": "input_file", "file_data": BLOB}]}), 0,
     {"file": None}),
    ("Responses: file by id", items({"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}), 0,
     {"file": None}),
    ("Responses: made image", items({"type": "image_generation_call", "id": "i", "result": IMAGE}), 0,
     {"image": IMAGE_TOKENS}),
    ("Responses: reasoning", items({"type": "reasoning", "encrypted_content": BLOB, "summary": []}), 0, {}),
    ("Responses: compacted", items({"type": "compaction", "encrypted_content": BLOB}), 0, {}),
    ("Responses: screenshot", items(
        {"type": "computer_call_output", "output": {"type": "computer_screenshot", "image_url": PNG_URL}}), 0,
     {"image": IMAGE_TOKENS}),
    ("Responses: a call", items({"type": "function_call", "call_id": "c", "name": "sh", "arguments": "{}"}), 4, {}),
    ("Responses: a call's output", items({"type": "function_call_output", "call_id": "c", "output": LIKE_DATA}),
     len(LIKE_DATA), {}),
    ("Responses: a plain string", {"input": "häh", "instructions": "abc"}, 7, {}),
    ("MCP: image", message({"type": "image", "data": IMAGE, "mimeType": "image/png"}), 0, {"image": IMAGE_TOKENS}),
    ("MCP: resource", message({"type": "resource", "resource": {"blob": SOUND, "mimeType": "audio/wav"}}), 0,
     {"audio": SOUND_TOKENS}),
    ("SGLang: image_data", {"text": "hi", "image_data": IMAGE}, 2, {"image": IMAGE_TOKENS}),
    ("SGLang: several", {"text": "hi", "image_data": [PNG_URL, PNG_URL]}, 2, {"image": 2 * IMAGE_TOKENS}),
    ("SGLang: audio_data", {"text": "hi", "audio_data": [SOUND]}, 2, {"audio": None}),
    ("Ollama: images", {"messages": [{"role": "user", "content": "hi", "images": [IMAGE]}]}, 2,
     {"image": IMAGE_TOKENS}),
    ("completions: embeddings", {"prompt_embeds": BLOB}, 0, {"image": None}),
    ("completions: several prompts", {"prompt": ["ab", "c"]}, 3, {}),
    ("tools as JSON",
     {"tools": [{"type": "function", "function": {"name": "sh", "parameters": {"a": "b"}}}]}, 58, {}),
    ("numbers in a call", message({"type": "tool_use", "name": "v", "input": {"view_range": [1, 50]}}), 23, {}),
    ("a schema with numbers", {"tools": [{"enum": [1, 2, 3]}]}, 20, {}),
    ("Responses: verbosity", {"input": "abc", "text": {"verbosity": "low"}}, 3, {}),
    ("Claude Code's first line", {"system": [
        {"type": "text", "text": "x-anthropic-billing-header: cch=1;"}, {"type": "text", "text": "abc"}]}, 3, {}),
    ("a schema that speaks of images", {"tools": [{"properties": {"image_url": {"type": "string"}}}]}, 41, {}),
    ("a model's fixed price", {"model": "google/gemma-3-12b", "image_data": IMAGE}, 0, {"image": 256}),
]  # fmt: skip


@pytest.mark.parametrize(("body", "text_bytes", "media"), [form[1:] for form in FORMS], ids=[f[0] for f in FORMS])
def test_each_form_counts_as_what_it_is(
    body: dict[str, Any], text_bytes: int, media: dict[str, int | None]
) -> None:
    prompt = measure(body)
    found = dict(zip(MEDIA, prompt.media[-1], strict=True))
    assert prompt.text_bytes == text_bytes
    assert {kind for kind, tokens in found.items() if tokens} == set(media)
    assert {kind: found[kind] for kind, tokens in media.items() if tokens} == {k: t for k, t in media.items() if t}


def test_token_ids_are_tokens() -> None:
    for name, ids, tokens in (
        ("input_ids", [1, 2, 3], 3),
        ("input_ids", [[1, 2, 3], [4, 5]], 5),
        ("token_ids", [1, 2, 3], 3),
    ):
        prompt = measure({name: ids})
        assert (prompt.text_bytes, prompt.tokens) == (0, tokens)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: (
    st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["type", "content", "image_url", "source", "data", "media_type"]), inner)
)))  # fmt: skip
def test_any_body_has_a_size(value: Any) -> None:
    prompt = measure({"messages": value, "tools": value, "image_data": value})
    assert prompt.text_bytes >= 0 and len(prompt.chain) == len(prompt.text) == len(prompt.media)


PIECES = ("1", ",", "/", " ", "10:", "tokens ", "2025-", "Mon ", "Jan ", "1234abcd-", "\n", "\n1")


def test_no_text_is_looked_at_for_long() -> None:
    """Were it read again from each of its characters, this would take minutes."""
    begun_s = time.process_time()
    for unit in (one + two for one in PIECES for two in PIECES):
        text = unit * ((1 << 15) // len(unit))
        VOLATILE.search(text)
        outline = measure({"system": [text] + ["10:00"] * 100, "messages": []}).outline
        assert len(outline.volatile) <= 64, "no part of what is counted of it"
    assert time.process_time() - begun_s < 15


def test_an_image_in_a_thousand_wrappers_is_measured() -> None:
    source: Any = "A" * 4000
    for _ in range(900):
        source = {"source": [source]}
    assert measure({"messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]}).chain
