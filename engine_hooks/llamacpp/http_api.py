"""The pages of llama.cpp's server that a gate outside asks, and the calls that move a slot's context."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from engine_hooks.llamacpp.moves import Call
from engine_hooks.llamacpp.slots import SlotSeen

_MOST_BYTES = 16 << 20  # of a page
_MOST_ERROR = 300  # characters of what it says
_ASKED_WITHIN_S = 2.0
_MOVED_WITHIN_S = 30.0  # a context may have gigabytes; of a slot that is busy nothing is answered before it ends


class Refused(Exception):
    """The server said no, or nothing; the text is for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Props:
    """What the server says of itself: as long as it says the same it is the same, and its files are good."""

    slots: int
    slot_tokens: int
    model: str
    build: str


class SlotsHttp:
    """One server at ``address``, ``HOST:PORT``."""

    def __init__(self, http: aiohttp.ClientSession, address: str) -> None:
        self._http = http
        self._url = f"http://{address}"

    async def props(self) -> Props:
        """Raises ``Refused``."""
        page = await self._ask("GET", "/props", within_s=_ASKED_WITHIN_S)
        settings = page.get("default_generation_settings")
        slots, tokens = page.get("total_slots"), settings.get("n_ctx") if isinstance(settings, dict) else None
        if type(slots) is not int or type(tokens) is not int or slots < 1 or tokens < 1:
            raise Refused("its /props tells no slots")
        return Props(
            slots=slots, slot_tokens=tokens, model=str(page.get("model_path")), build=str(page.get("build_info"))
        )

    async def slots(self) -> list[SlotSeen]:
        """Raises ``Refused``, as a server does that was started with ``--no-slots``."""
        page = await self._ask("GET", "/slots", within_s=_ASKED_WITHIN_S)
        return [
            SlotSeen(
                slot_id=number,
                busy=bool(slot.get("is_processing")),
                task=slot.get("id_task"),
                tokens=int(slot.get("n_prompt_tokens") or 0),
            )
            for slot in page["listed"]
            if isinstance(slot, dict) and type(number := slot.get("id")) is int
        ]

    async def act(self, call: Call) -> int:
        """Make the call: the bytes that were written, where it saved. Raises ``Refused``."""
        path = f"/slots/{call.slot_id}?action={call.action}"
        page = await self._ask("POST", path, within_s=_MOVED_WITHIN_S, body={"filename": call.filename})
        written = page.get("n_written", 0)
        return written if type(written) is int else 0

    async def _ask(
        self, method: str, path: str, *, within_s: float, body: Mapping[str, object] | None = None
    ) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(total=within_s, sock_connect=_ASKED_WITHIN_S)
        try:
            async with self._http.request(
                method, f"{self._url}{path}", json=body, timeout=timeout, allow_redirects=False
            ) as answer:
                data = await answer.content.read(_MOST_BYTES)
                while more := await answer.content.read(_MOST_BYTES - len(data)):
                    data += more
                value = json.loads(data)
        except TimeoutError:
            raise Refused(f"no answer to {path} within {within_s:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError, RecursionError) as error:
            raise Refused(f"{path}: {error or type(error).__name__}"[:_MOST_ERROR]) from None
        page = {"listed": value} if isinstance(value, list) else value if isinstance(value, dict) else {}
        if answer.status != 200:
            said = page.get("error")
            text = said.get("message") if isinstance(said, dict) else None
            raise Refused(f"it answers {answer.status}: {text or data.decode('utf-8', 'replace')}"[:_MOST_ERROR])
        if path == "/slots" and "listed" not in page:
            raise Refused("its /slots is no list")
        return page
