"""What an endpoint's answers say besides the reply: errors, holds, waits, models."""

import math
import time
from email.utils import parsedate_to_datetime

import aiohttp
import msgspec


def retry_after_s(response: aiohttp.ClientResponse) -> float:
    """``Retry-After`` in seconds, from now where it is a date; 0 where there is none that can be read."""
    text = response.headers.get("retry-after", "")
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, IndexError):
        return positive(text)


async def refusal(response: aiohttp.ClientResponse) -> str:
    """An error answer in one line: status and message."""
    data = await response.read()
    try:
        body = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        body = None
    message = message_of(body) or data.decode(errors="replace").strip() or (response.reason or "")
    if response.status in (401, 403):
        message += " (a key: --api-key or OPENAI_API_KEY)"
    if location := response.headers.get("location", ""):
        message += f": redirects to {location}, where nothing is sent: give the final --url"
    return f"HTTP {response.status}: {message[:300]}"


async def error_in(response: aiohttp.ClientResponse) -> str:
    """The error that an answer with a good status holds; empty if it holds none."""
    try:
        body = msgspec.json.decode(await response.read())
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    error = message_of(body.get("error")) if isinstance(body, dict) else ""
    return f"HTTP {response.status} with an error: {error[:300]}" if error else ""


def message_of(body: object) -> str:
    """The message in an error body: ``{"error": {"message"}}``, a list of it (Google), ``{"message"}`` (SGLang)."""
    if isinstance(body, list):
        return message_of(body[0]) if body else ""
    if isinstance(body, dict):
        return message_of(body.get("error") or body.get("message") or body.get("detail") or "")
    return body if isinstance(body, str) else ""


async def find_model(http: aiohttp.ClientSession, base_url: str) -> str:
    """The first model that the endpoint serves; ``default`` where it does not say.

    Raises ``aiohttp.ClientError`` or ``OSError`` where nobody answers.
    """
    async with http.get(f"{base_url}/v1/models", allow_redirects=False) as response:
        if response.status != 200:
            return "default"
        try:
            return str(msgspec.json.decode(await response.read())["data"][0]["id"])
        except (msgspec.DecodeError, UnicodeDecodeError, LookupError, TypeError):
            return "default"


def positive(text: str) -> float:
    """The number that a header says; 0 where it says none."""
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) and value > 0 else 0.0
