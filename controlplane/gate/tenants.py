"""Keep tenants' program ids apart: two tenants that use the same id have two programs.

An id belongs to the tenant that used it first at this gate. Another tenant's program of that id gets a name made of
both, so that agents' hooks, which know ids but not tenants, still name the program that they mean. A tenant is whom
the gate vouches for, by an API key or a header that it believes, or else whom the request names. Who only claims a
name is never taken for who is vouched for under that name.

The table is bounded, and whoever sends many ids could have others' forgotten, to take them over. So an id is kept
as long as its program has turns here, or may have them without asking.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

from controlplane.core.model.tenancy import KEY_DIGEST
from controlplane.core.model.text import sanitize
from controlplane.gate.identity import CLAIMED, Body, Headers, Identity, identify

_SHORT = len(KEY_DIGEST) + 16  # characters of a key's digest in a program's name
_MOST_LOOKED_AT = 64  # ids, to forget one; where all of them are in use the table grows by as many as live at once


class Tenants:
    """The owner of each id; the least recently used id that is not ``in_use`` is forgotten first.

    ``header``: whose word is believed.
    """

    def __init__(
        self, most_programs: int, header: str = "", in_use: Callable[[str], bool] = lambda program_id: False
    ) -> None:
        self._most_programs = most_programs
        self._header = header.lower()
        self._in_use = in_use
        self._owners: OrderedDict[str, str] = OrderedDict()
        self.placeholders = 0  # requests that had one where an id should be

    def identify(self, headers: Headers, body: Body | None) -> Identity:
        """The identity of a request, with the names that its programs have here. Raises ``BadIdentity``."""
        identity = identify(headers, body, self._header)
        self.placeholders += bool(identity.placeholder)
        return self.scope(identity)

    def scope(self, identity: Identity) -> Identity:
        """The identity, with the names that its program and its parent have here."""
        if identity.anonymous:
            return identity
        tenant = identity.owner
        program_id = self._name(identity.program_id, tenant)
        self._assign(program_id, tenant)
        parent_id = identity.parent_id and self._name(identity.parent_id, tenant)
        return replace(identity, program_id=program_id, parent_id=parent_id if parent_id != program_id else "")

    def may_name(self, program_id: str, identity: Identity) -> bool:
        """Whether that id, as it is, is not another's than theirs who send the request."""
        return self._owners.get(program_id, identity.owner) == identity.owner

    def share(self, tenant: str, *program_ids: str) -> bool:
        """True if all these ids belong to that tenant; ids without an owner do from now on.

        An empty tenant means that nobody named the owner: then True if, as far as known, they have the same one.
        """
        owners = {self._owners[name] for name in program_ids if name in self._owners}
        if not tenant:
            return len(owners) < 2
        owner = CLAIMED + tenant if owners == {CLAIMED + tenant} else tenant
        for program_id in program_ids:
            self._assign(program_id, owner)
        return all(self._owners.get(program_id) == owner for program_id in program_ids)

    def _assign(self, program_id: str, tenant: str) -> None:
        """Give the id to that tenant, unless it has an owner."""
        self._owners.setdefault(program_id, tenant)
        self._owners.move_to_end(program_id)
        if len(self._owners) > self._most_programs:
            self._forget_one()

    def _forget_one(self) -> None:
        for _ in range(min(_MOST_LOOKED_AT, len(self._owners) - 1)):
            oldest = next(iter(self._owners))
            if not self._in_use(oldest):
                del self._owners[oldest]
                return
            self._owners.move_to_end(oldest)

    def _name(self, program_id: str, tenant: str) -> str:
        while self._owners.get(program_id, tenant) != tenant:
            short = tenant[:_SHORT] if tenant.startswith(KEY_DIGEST) else tenant.removeprefix(CLAIMED)
            program_id = sanitize(f"{program_id}@{short}")
        return program_id
