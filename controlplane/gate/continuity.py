"""Whose context a prompt goes on with: programs of clients that name nobody, and how far an id is believed.

A chat's next request begins with the messages of the one before. What goes on with a context that is known belongs
to that context's program. Who names nobody is told apart by that alone. A session's id is believed until contexts
refute it (docs/adr/0021):

- a context that goes on with none is the program's own, rewritten, if none of the program's turns is open;
- a request without tools, of another kind than its program and no larger, is an *aside*, as for a title;
- what begins while a turn of the program is open is another conversation, and a program of its own;
- once two contexts of one id go on by turns, the id names many: each new context is a program of its own.

An id that only hints (``carriers.Names``) counts where no context does. Plain-text prompts are not compared. What a
server keeps is known by the id of its response. Two conversations that begin alike are one until either goes on.
"""

import uuid
from collections import OrderedDict
from dataclasses import dataclass, field, replace

from controlplane.core.estimators.prompt_size import CONTINUED
from controlplane.core.model.text import sanitize
from controlplane.gate.carriers import STANDS_FOR, Names
from controlplane.gate.identity import Body, Identity
from controlplane.gate.sizing import Prompt

SOURCE = "how its prompt goes on"
_MOST = 16_384  # contexts, and ids; what was silent for longest is forgotten, first of who has more than others
_MOST_KINDS = 1024
_LAST = 4  # beginnings of a prompt that are remembered, as clients change their last messages; and responses


@dataclass(slots=True, eq=False)
class _Context:
    """One conversation. ``turns``: of it that are in the gate or the engine."""

    program_id: str
    owner: str
    scope: str  # where it is looked for: its id, or whose the requests are that name nobody
    kind: str
    offers_tools: bool
    first: int  # parts of its first prompt
    size: int = 0  # of its last prompt: bytes of text
    marks: list[int] = field(default_factory=list)  # its last prompt's last beginnings, the whole of it last
    responses: list[str] = field(default_factory=list)
    turns: int = 0
    is_aside: bool = False
    has_gone_on: bool = False

    @property
    def stands(self) -> bool:
        """Whether it is more than one request that might as well be for a title."""
        return self.offers_tools or self.has_gone_on


@dataclass(slots=True)
class _Id:
    """``holder``: the context whose program has the id for a name. ``many``: it names several programs."""

    holder: _Context
    last: _Context  # that went on
    many: bool = False


class Continuity:
    """Remembers contexts, so ``most`` of them; with 0 it compares nothing. Use it in one event loop."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._found: dict[tuple[str, int | str], _Context] = {}  # by scope, and by a mark or a response
        self._contexts: OrderedDict[_Context, None] = OrderedDict()
        self._of_owner: dict[str, OrderedDict[_Context, None]] = {}
        self._ids: OrderedDict[tuple[str, str], _Id] = OrderedDict()
        self._kinds: OrderedDict[tuple[str, str], None] = OrderedDict()  # of an owner's asides; none that went on

    def name(self, identity: Identity, body: Body, prompt: Prompt) -> tuple[Identity, "TurnOfContext"]:
        """Whose the request is. Say when its turn is over."""
        names = _names(identity)
        is_believed = identity.is_ours or (prompt.is_stored and names is Names.SESSION)
        if is_believed or not (self._most and _is_chat(body)):
            return identity, TurnOfContext(self, None)
        digests = prompt.chain[1:]  # each beginning of its messages, the shortest first
        if prompt.is_stored or isinstance(body.get("input"), str):
            digests = []  # it says too little of what is before it, or after it
        elif not digests:
            return identity, TurnOfContext(self, None)
        scope = identity.program_id if names is Names.SESSION else f"\n{identity.owner}"
        name = identity.hint or identity.program_id
        context = self._known(scope, digests, body.get("previous_response_id"))
        if context is not None:
            if not digests or context.marks[-1:] != digests[-1:]:  # else it is tried again
                self._goes_on(context, name)
        else:
            offers = bool(body.get("tools") or body.get("functions"))
            context = _Context(name, identity.owner, scope, identity.agent, offers, first=len(digests))
            if names is None:
                context.program_id = f"{CONTINUED}{uuid.uuid4().hex}"
            elif names is Names.AGENT:
                context.program_id = _apart(name)
            elif parent_id := self._parent_of_aside(context, prompt, names):
                identity = replace(identity, parent_id=parent_id, within=True, aside=True)
                context.program_id, context.is_aside = _apart(parent_id), True
            else:
                self._begin(context, name)
        context.turns += 1
        context.size = prompt.text_bytes
        self._remember(context, digests)
        source = identity.source if names else SOURCE
        named = replace(identity, program_id=context.program_id, source=source, anonymous=False)
        return named, TurnOfContext(self, context)

    def over(self, context: "_Context", response_id: str) -> None:
        """A turn of it is over; ``response_id``: by which a later request may name what it goes on with."""
        context.turns -= 1
        if response_id and context in self._contexts:
            response_id = sanitize(response_id)  # an engine may make it of what its client sent
            context.responses.append(response_id)
            self._found[context.scope, response_id] = context
            if len(context.responses) > _LAST:
                self._found.pop((context.scope, context.responses.pop(0)), None)

    def _known(self, scope: str, digests: list[int], previous: object) -> _Context | None:
        if isinstance(previous, str) and (context := self._found.get((scope, sanitize(previous)))):
            return context
        for digest in reversed(digests):
            if (context := self._found.get((scope, digest))) is not None:
                is_same = context.marks[-1] == digests[-1]
                is_twin = is_same and context.turns and scope.startswith("\n")  # two that begin alike, at one time
                return None if is_twin or (is_same and context.is_aside) else context
        return None

    # -- an id and its contexts ----------------------------------------------------------------------------

    def _parent_of_aside(self, new: _Context, prompt: Prompt, names: Names) -> str:
        """Beside which program it asks, if it is a request for a title or the like; else empty."""
        if new.offers_tools:
            return ""
        known = self._ids.get((new.scope, new.program_id))
        if known is None:  # a title may be asked for before the conversation's first turn
            return new.program_id if names is Names.SESSION and (new.owner, new.kind) in self._kinds else ""
        holder = known.holder
        is_other = holder.offers_tools or new.kind != holder.kind
        if not (holder.stands and is_other and prompt.text_bytes <= holder.size):
            return ""
        self._note_kind(new)
        return holder.program_id

    def _begin(self, new: _Context, name: str) -> None:
        """A context that goes on with none takes the id's place, or is a program of its own."""
        known = self._ids.get((new.scope, name))
        if known is None:
            self._note_id(name, new)
            return
        self._ids.move_to_end((new.scope, name))
        was_aside = new.offers_tools and not known.holder.stands
        if was_aside:
            known.holder.is_aside = True
            self._note_kind(known.holder)
        if was_aside or not (known.many or known.holder.turns):
            known.holder = known.last = new
        else:
            new.program_id = _apart(name)

    def _goes_on(self, context: _Context, name: str) -> None:
        context.has_gone_on = True
        self._kinds.pop((context.owner, context.kind), None)
        known = self._ids.get((context.scope, name))
        if context.is_aside:  # it was none
            context.is_aside = False
            context.program_id = name if known is None else _apart(name)
        if known is None:
            if context.program_id == name:
                self._note_id(name, context)
            return
        known.many = known.many or (known.last is not context and known.last.has_gone_on)
        known.last = context
        holder = known.holder
        if holder is not context and holder.program_id == context.program_id:
            if holder.has_gone_on:  # it was taken for this one, rewritten, and was another all the time
                holder.program_id = _apart(name)
            known.holder = context

    def _note_id(self, name: str, holder: _Context) -> None:
        self._ids[holder.scope, name] = _Id(holder, holder)
        if len(self._ids) > self._most:
            self._ids.popitem(last=False)

    def _note_kind(self, aside: _Context) -> None:
        if aside.kind:
            self._kinds[aside.owner, aside.kind] = None
            self._kinds.move_to_end((aside.owner, aside.kind))
            if len(self._kinds) > _MOST_KINDS:
                self._kinds.popitem(last=False)

    # -- what is remembered --------------------------------------------------------------------------------

    def _remember(self, context: _Context, digests: list[int]) -> None:
        """Its prompt is this one now. What may be another's first prompt, too, is no mark of it."""
        self._forget_marks(context)
        context.marks = digests[max(context.first, len(digests) - _LAST) : -1] + digests[-1:]
        for mark in context.marks:
            first = self._found.setdefault((context.scope, mark), context)
            if first is not context and not first.turns:
                self._found[context.scope, mark] = context
        own = self._of_owner.setdefault(context.owner, OrderedDict())
        for table in (self._contexts, own):
            table[context] = None
            table.move_to_end(context)
        if len(self._contexts) > self._most:
            has_most = (len(own) - 1) * len(self._of_owner) > self._most
            self._forget(next(iter(own if has_most else self._contexts)))

    def _forget(self, gone: _Context) -> None:
        own = self._of_owner[gone.owner]
        del self._contexts[gone], own[gone]
        if not own:
            del self._of_owner[gone.owner]
        self._forget_marks(gone)
        for response in gone.responses:
            self._found.pop((gone.scope, response), None)

    def _forget_marks(self, context: _Context) -> None:
        for mark in context.marks:
            if self._found.get((context.scope, mark)) is context:
                del self._found[context.scope, mark]


def _names(identity: Identity) -> Names | None:
    """What its id stands for; None: it has none."""
    if identity.hint:
        return STANDS_FOR[identity.source]
    return None if identity.anonymous else Names.SESSION


def _is_chat(body: Body) -> bool:
    """Whether it is a list of messages, or a request in OpenAI's Responses."""
    return isinstance(body.get("messages"), list) or isinstance(body.get("input"), list | str)


def _apart(name: str) -> str:
    """The name of another program of that id."""
    return sanitize(f"{name}~{uuid.uuid4().hex[:8]}")


@dataclass(slots=True)
class TurnOfContext:
    """A turn, and the context that it belongs to; None: there was nothing to compare."""

    _continuity: Continuity
    _context: _Context | None

    def over(self, response_id: str = "") -> None:
        """It is over, once or more; ``response_id``: of its reply, empty where it has none."""
        context, self._context = self._context, None
        if context is not None:
            self._continuity.over(context, response_id)
