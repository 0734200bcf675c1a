"""How many tokens a prompt has, by what a gate measures of its request.

A gate sees bytes; an engine counts tokens and tells them when a turn ends. Three things join the two. A prompt that
begins as an earlier one of its program is that one's tokens and what is new. New text is bytes times a rate; a chat
template adds a constant to each first prompt. An image, a recording or a file costs what its form suggests times a
factor. Rate, constant and factors are learned by model and kind of agent.

One client must not spoil the estimates of another: a program teaches one value, the ratio of the sums over all that
it sent, and a class goes by the median over the programs of the same account (an API key, or a tenant). An account
that has taught too little goes by the median over all accounts. So a health check that asks all day, and an agent
that sends what is no English, are one voice among many, and a client with a thousand sessions is heard by itself
alone, where it has a key of its own. What nobody has taught is a guess, and ``PromptTokens`` says so.
"""

from collections import Counter
from dataclasses import dataclass, field, fields
from statistics import median

ANONYMOUS = "anonymous-"
"""How the names begin that a gate gives to turns without one."""
CONTINUED = "continued-"
"""Likewise, to conversations that it knows by how their prompts go on."""
UNNAMED = (ANONYMOUS, CONTINUED)

MEDIA = ("image", "audio", "video", "file")
"""What a prompt may hold beside text."""

_PRIORS = {"text": 0.25, "template": 16.0} | dict.fromkeys(MEDIA, 1.0)  # tokens per byte of English, or of code
_BOUNDS = {"text": (0.02, 1.5), "template": (0.0, 8192.0)} | dict.fromkeys(MEDIA, (0.02, 50.0))
_WEIGHTS = {"text": 4096.0, "template": 1.0} | dict.fromkeys(
    MEDIA, 500.0
)  # that a sender's own figure is shrunk by
_MOST_CLASSES = 256  # the one that was taught longest ago makes room
_MOST_SENDERS = 64  # of a class, likewise
_FEWEST_SENDERS = 3  # that have to have taught a class before it is gone by
_LEAST_TEXT_BYTES = 512  # less new text tells of its template as much as of itself
_LEAST_FIRST_BYTES = 2048  # a shorter first prompt tells of its template, a longer one of its text


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSize:
    """What a gate measures of a prompt. All of it counts as new where it continues nothing.

    ``prompt_tokens``: where the prompt came as token ids. ``continues``: the id of an earlier turn of the program
    with whose prompt this one begins; ``shared_ratio``: how much of that prompt (1: all of it). ``new_bytes`` and
    the tokens of images and the like, as their forms suggest, are of what is behind that part.
    """

    prompt_bytes: int = 0
    prompt_tokens: int = 0
    model: str = ""
    agent: str = ""
    continues: str = ""
    shared_ratio: float = 0.0
    new_bytes: int = 0
    image_tokens: int = 0
    audio_tokens: int = 0
    video_tokens: int = 0
    file_tokens: int = 0

    @property
    def media(self) -> tuple[int, ...]:
        """The tokens of each of ``MEDIA``."""
        return self.image_tokens, self.audio_tokens, self.video_tokens, self.file_tokens

    @property
    def is_measured(self) -> bool:
        return bool(self.prompt_bytes or self.prompt_tokens or any(self.media))


SIZE_FIELDS = tuple(each.name for each in fields(PromptSize))
"""An event carries a size as fields of these names."""


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """An estimate in tokens, and what of it is a guess since nobody has taught it: ``text``, or kinds of media."""

    tokens: float
    guessed: tuple[str, ...] = ()


Sender = str
"""Whose experience a turn is: its account and program, see ``sender_of``."""


@dataclass(slots=True)
class Learned:
    """A ratio that many senders teach, each by the sums of what it sent."""

    sums: dict[Sender, tuple[float, float]] = field(default_factory=dict)  # tokens, and what they came from

    def add(self, sender: Sender, tokens: float, per: float) -> None:
        before = self.sums.pop(sender, (0.0, 0.0))
        self.sums[sender] = (before[0] + tokens, before[1] + per)
        if len(self.sums) > _MOST_SENDERS:
            (crowd, _), *_ = Counter(map(_account, self.sums)).most_common(1)
            del self.sums[next(each for each in self.sums if _account(each) == crowd)]

    def median(self, prior: float, sender: Sender) -> float | None:
        """The median over the senders of the same account, the prior as one of them.

        If those are too few, that over the medians of all accounts; None while too few have taught at all.
        """
        by_account: dict[str, list[float]] = {}
        for each, (tokens, per) in self.sums.items():
            by_account.setdefault(_account(each), []).append(tokens / per)
        own = by_account.get(_account(sender), [])
        if len(own) >= _FEWEST_SENDERS:
            return median([prior, *own])
        if len(self.sums) < _FEWEST_SENDERS:
            return None
        return float(median([prior, *map(median, by_account.values())]))


ClassSizes = dict[str, Learned]
"""Of one model and kind of agent: ``text`` (tokens per byte), ``template`` (tokens) and each of ``MEDIA``."""


@dataclass(slots=True, kw_only=True)
class PromptSizes:
    """Estimates prompts, and learns from what engines count.

    ``sender``: see ``sender_of``. ``known_tokens``, what the engine counted in
    the turn that the prompt continues: 0 if that is not known.
    """

    classes: dict[str, ClassSizes] = field(default_factory=lambda: {"": {}})  # "": all together

    def estimate(self, size: PromptSize, sender: Sender, known_tokens: int = 0) -> PromptTokens:
        """Estimate how many tokens the prompt has."""
        if size.prompt_tokens:
            tokens, text_bytes = float(size.prompt_tokens), 0
        elif size.continues and known_tokens:
            tokens, text_bytes = known_tokens * size.shared_ratio, size.new_bytes
        else:
            tokens, text_bytes = self._value(size, sender, "template")[0], size.prompt_bytes
        guessed = []
        for kind, amount in (("text", text_bytes), *zip(MEDIA, size.media, strict=True)):
            if amount:
                value, is_learned = self._value(size, sender, kind)
                tokens += amount * value
                if not is_learned:
                    guessed.append(kind)
        return PromptTokens(tokens, tuple(guessed))

    def learn(self, size: PromptSize, sender: Sender, counted_tokens: int, known_tokens: int = 0) -> None:
        """Take what the engine counted in the prompt, where it can be told which part of it cost what."""
        kinds = [kind for kind, amount in zip(MEDIA, size.media, strict=True) if amount]
        continues = bool(size.continues and known_tokens)
        if size.prompt_tokens or not counted_tokens or len(kinds) > 1 or 0 < size.shared_ratio < 1:
            return
        if size.continues and not continues:
            return  # what it shares holds media, perhaps, of which nothing is known here
        text_bytes = size.new_bytes if continues else size.prompt_bytes
        rest = counted_tokens - (known_tokens if continues else self._value(size, sender, "template")[0])
        text_tokens = text_bytes * self._value(size, sender, "text")[0]
        if kinds:
            amount = size.media[MEDIA.index(kinds[0])]
            self._teach(size, sender, kinds[0], rest - text_tokens, amount)
        elif text_bytes >= (_LEAST_TEXT_BYTES if continues else _LEAST_FIRST_BYTES):
            self._teach(size, sender, "text", rest, text_bytes)
        elif text_bytes and not continues:
            self._teach(size, sender, "template", counted_tokens - text_tokens, 1)

    def _value(self, size: PromptSize, sender: Sender, what: str) -> tuple[float, bool]:
        """What is known of it, the sender's own experience first; whether anybody has taught it."""
        own, pooled, prior = self.classes.get(_key(size), {}).get(what), self.classes[""].get(what), _PRIORS[what]
        medians = (learned.median(prior, sender) for learned in (own, pooled) if learned is not None)
        usual = next((value for value in medians if value is not None), None)
        tokens, per = own.sums.get(sender, (0.0, 0.0)) if own is not None else (0.0, 0.0)
        weight = _WEIGHTS[what]
        value = (tokens + weight * (prior if usual is None else usual)) / (per + weight)
        return value, usual is not None or per >= weight

    def _teach(self, size: PromptSize, sender: Sender, what: str, tokens: float, per: float) -> None:
        low, high = _BOUNDS[what]
        for key in (_key(size), ""):
            sizes = self.classes.pop(key, None) or {}
            self.classes[key] = sizes  # the latest stands last
            sizes.setdefault(what, Learned()).add(sender, min(max(tokens, low * per), high * per), per)
        if len(self.classes) > _MOST_CLASSES:
            del self.classes[next(iter(self.classes))]


def sender_of(program_id: str, account: str = "") -> Sender:
    """Whose experience a turn is: its program's; all that an account leaves unnamed are one."""
    return f"{account}\n{'' if program_id.startswith(UNNAMED) else program_id}"


def _account(sender: Sender) -> str:
    return sender.rpartition("\n")[0]


def _key(size: PromptSize) -> str:
    return f"{size.model}\n{size.agent}"
