"""One turn against an OpenAI-compatible endpoint: stream it, time it, wait out a refusal."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

import aiohttp
import msgspec

from controlplane.core.model.types import seconds
from controlplane.lab.load.answers import error_in, positive, refusal, retry_after_s
from controlplane.lab.load.clock import TraceClock
from controlplane.lab.load.sse import HOLD_HEADER, ReplyBroken, ReplyStream
from controlplane.lab.workload.patience import LONGEST_WAIT_S

SESSION_HEADER = "x-session-id"
AGENT_HEADER = "x-penstock-agent"
GROUP_HEADER, GROUP_SIZE_HEADER = "x-penstock-group-id", "x-penstock-group-size"
TURN_HEADER = "x-penstock-turn-id"  # of a gate's answers
BUSY = frozenset({429, 503})
_REFUSES_A_FIELD = frozenset({400, 422})
_DISPENSABLE = ("ignore_eos", "stream_options", "temperature")  # which some endpoints refuse
_MAX_TOKENS, _INSTEAD = "max_tokens", "max_completion_tokens"  # as OpenAI's reasoning models want it
# Of a 429 or 503: where the answer has no Retry-After, and of one at most; in trace time.
_USUAL_WAIT_S = 1.0
Identity = Literal["header", "body", "none"]


@dataclass(slots=True, kw_only=True)
class TurnOutcome:
    """What became of one turn; times are trace time. ``first_token_ns`` 0: none came."""

    queued_ns: int
    accepted_ns: int = 0  # when the attempt was sent that was not refused
    first_token_ns: int = 0
    ended_ns: int = 0
    hold_ns: int = 0  # refusals waited out, and the hold that the gate reports
    prompt_tokens: int | None = None  # None: the endpoint did not count; so the next two
    output_tokens: int | None = None
    cached_tokens: int | None = None
    finish: str = ""  # why the reply ended, in the endpoint's word
    retries: int = 0
    refusals: int = 0  # of those: 429 and 503
    turn_id: str = ""  # as events call it; empty where no gate says so
    text: str = ""
    error: str = ""


class TurnFailed(Exception):
    """The endpoint did not give a whole reply; the message says what it did."""


class _Busy(Exception):
    """The endpoint said 429 or 503, or so in a stream that had begun; wait ``wait_s``."""

    def __init__(self, message: str, wait_s: float) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class _FieldRefused(Exception):
    """The endpoint does not take that field of a request."""

    def __init__(self, field: str) -> None:
        super().__init__(field)
        self.field = field


class ChatClient:
    """Sends turns of any number of programs over one connection pool."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        *,
        url: str,
        model: str,
        clock: TraceClock,
        identity: Identity = "header",
        give_up_after_s: float,
        shown: Callable[[str], str] = str,
    ) -> None:
        self.retries = 0
        self.waiting = 0  # turns sent that have no token yet
        self.streaming = 0
        self.left_out: set[str] = set()  # fields that the endpoint refused
        self._http = http
        self._url = url
        self._model = model
        self._clock = clock
        self._identity = identity
        self._give_up_after_s = give_up_after_s
        self._shown = shown  # makes what the endpoint said fit to be shown

    async def turn(
        self,
        program_id: str,
        messages: Sequence[msgspec.Raw],
        output_tokens: int,
        *,
        agent: str = "",
        group: tuple[str, int] | None = None,
        priority: int | None = None,
    ) -> TurnOutcome:
        """Run one turn to its end. Never raises for what the endpoint does: ``error`` says it.

        ``agent``: which kind of agent asks, where it says so. ``group``: the name and the size of that of which it
        is a rollout. ``priority``: for an engine that orders its queue by such numbers, the lowest first.
        """
        outcome = TurnOutcome(queued_ns=self._clock.now_ns())
        asked = self._body(program_id, messages, output_tokens)
        if priority is not None:
            asked["priority"] = priority
        headers = {"content-type": "application/json"}
        if self._identity == "header":
            headers[SESSION_HEADER] = program_id
        if agent:
            headers[AGENT_HEADER] = quote(agent)
        if group is not None:
            headers |= {GROUP_HEADER: quote(group[0]), GROUP_SIZE_HEADER: str(group[1])}
        self.waiting += 1
        try:
            await self._until_accepted(outcome, asked, headers)
        except TurnFailed as failure:
            outcome.error = str(failure)
        except TimeoutError:
            outcome.error = "the endpoint sent nothing for too long"
        except (aiohttp.ClientError, OSError) as failure:
            outcome.error = f"{type(failure).__name__}: {failure}".strip(": ")
        finally:
            if outcome.first_token_ns:
                self.streaming -= 1
            else:
                self.waiting -= 1
        outcome.error = self._shown(outcome.error)
        outcome.ended_ns = self._clock.now_ns()
        return outcome

    def _body(self, program_id: str, messages: Sequence[msgspec.Raw], output_tokens: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "messages": messages,
            "max_tokens": output_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._identity == "body":
            body["program_id"] = program_id
        return body

    async def _until_accepted(self, outcome: TurnOutcome, asked: dict[str, Any], headers: dict[str, str]) -> None:
        give_up_ns = outcome.queued_ns + seconds(self._give_up_after_s)
        while True:
            outcome.accepted_ns = self._clock.now_ns()
            try:
                await self._attempt(outcome, self._encoded(asked), headers)
                return
            except _FieldRefused as refused:
                self.left_out.add(refused.field)
            except _Busy as busy:
                outcome.refusals += 1
                wait_ns = seconds(busy.wait_s)
                if self._clock.now_ns() + wait_ns > give_up_ns:
                    raise TurnFailed(f"{busy} after {outcome.retries} retries") from None
                outcome.retries += 1
                self.retries += 1
                await self._clock.sleep_ns(wait_ns)
            except (aiohttp.ServerDisconnectedError, ConnectionResetError):
                # An idle connection that the server closed as we took it: nothing was answered, so ask again.
                if outcome.retries or outcome.first_token_ns:
                    raise
                outcome.retries += 1
                self.retries += 1

    def _encoded(self, asked: dict[str, Any]) -> bytes:
        body = {name: value for name, value in asked.items() if name not in self.left_out}
        if _MAX_TOKENS in self.left_out:
            body[_INSTEAD] = asked[_MAX_TOKENS]
        return msgspec.json.encode(body)

    def _refused(self, status: int, message: str, body: bytes) -> Exception:
        """Who refuses a field that a replay can do without is asked without it, from then on."""
        if status in _REFUSES_A_FIELD:
            for field in (*_DISPENSABLE, *([_MAX_TOKENS] if _INSTEAD in message else [])):
                if field in message and f'"{field}"'.encode() in body:
                    return _FieldRefused(field)
        return TurnFailed(message)

    async def _attempt(self, outcome: TurnOutcome, body: bytes, headers: dict[str, str]) -> None:
        async with self._http.post(self._url, data=body, headers=headers, allow_redirects=False) as response:
            if response.status in BUSY:
                told_s = retry_after_s(response) * self._clock.time_scale  # it is of the wall clock
                wait_s = told_s or _USUAL_WAIT_S
                raise _Busy(await refusal(response), min(wait_s, LONGEST_WAIT_S))
            if response.status != 200:
                raise self._refused(response.status, await refusal(response), body)
            if "text/event-stream" not in response.headers.get("content-type", ""):
                raise TurnFailed(await error_in(response) or "the endpoint does not stream chat completions")
            held_ns = round(positive(response.headers.get(HOLD_HEADER, "")) * 1e6)
            outcome.hold_ns = outcome.accepted_ns - outcome.queued_ns + held_ns
            outcome.turn_id = response.headers.get(TURN_HEADER, "")
            await self._read(outcome, response)

    async def _read(self, outcome: TurnOutcome, response: aiohttp.ClientResponse) -> None:
        reply = ReplyStream()
        async for data in response.content.iter_any():
            try:
                reply.feed(data)
            except (msgspec.DecodeError, UnicodeDecodeError, ReplyBroken) as failure:
                if isinstance(failure, ReplyBroken) and failure.wait_s and not reply.begun:
                    wait_s = min(failure.wait_s * self._clock.time_scale, LONGEST_WAIT_S)
                    raise _Busy(str(failure), wait_s) from failure
                raise TurnFailed(f"the stream broke: {failure}") from failure
            if reply.begun and not outcome.first_token_ns:
                outcome.first_token_ns = self._clock.now_ns()
                self.waiting -= 1
                self.streaming += 1
        if not reply.finish:
            raise TurnFailed("the stream was cut before its end")
        outcome.hold_ns += round(reply.held_ms * 1e6)
        outcome.text = reply.text
        outcome.finish = reply.finish
        outcome.prompt_tokens = reply.prompt_tokens
        outcome.output_tokens = reply.output_tokens
        outcome.cached_tokens = reply.cached_tokens
