"""What stands where a client should have put an id: a template that was not filled, or the name of nothing.

Every client that fails so sends the same one. Taken for an id it would make one program of all of them.
"""

import re

from controlplane.core.model.types import MOST_NAME

_WORDS = frozenset({"undefined", "null", "none", "nil", "nan", "nul", "missing", "true", "false"})
# In a header or field that was not made for us. Whoever writes ours by hand may mean these.
_LOOSE_WORDS = _WORDS | {"default", "unknown", "string", "anonymous", "example", "changeme", "placeholder", "empty"}
_NOUNS = frozenset(
    {"session", "sess", "sid", "id", "ids", "uuid", "user", "conversation", "conv", "thread", "chat"}
)
_NOUNS |= {"conv", "program", "run", "job", "agent", "task", "request"}
_LITERAL = frozenset({"session-id", "session_id", "sessionid", "conversation_id", "conversation-id", "thread_id"})
_PARTS = re.compile(r"[\s\-_:/.@|,;]+")
_ANYWHERE = re.compile(
    r"\{\{.*\}\}|\{%.*%\}|<%.*%>|\$\{[^}]*\}|\$\([A-Za-z_]\w*\)"  # Jinja, ERB, shells, Kubernetes
    r"|\[object \w+\]|%!\w?\(.*\)|<nil>"  # JavaScript, Go
)
_WHOLE = re.compile(
    r"[<{][A-Za-z_][\w.\- ]*[>}]|[\[(][A-Za-z_][A-Za-z_.\- ]*[\])]"  # <session-id>, {session_id}, [SESSION_ID]
    r"|\$(env:)?[A-Za-z_]+|%[A-Za-z_]\w*%|%(\(\w+\))?[sdvi@]|:[a-z_]+_?id|__[A-Z_]+__"
    r"|your[-_ ].*(id|here|session|uuid|name|key)"
    r"|(insert|enter|replace)[-_ ]((your|the|a|with|this|session|program|user|unique)[-_ ])*"
    r"(id|here|session|uuid|name|key)"
    r"|x{3,}([-_]x+)*|[0-]{16,}|(?=.{32})[f-]{32,36}|[!-/:-@\[-`{-~]+",
    re.IGNORECASE,
)


def is_placeholder(text: str, *, loose: bool = False) -> bool:
    """Whether the text, not empty, is no id. ``loose``: of a carrier of somebody else's, where more is none."""
    if len(text) > MOST_NAME:
        return False
    lowered = text.strip("\"'` ").lower()
    if not lowered or (loose and lowered in _LITERAL) or _ANYWHERE.search(text) or _WHOLE.fullmatch(lowered):
        return True
    words = _LOOSE_WORDS if loose else _WORDS
    parts = {part for part in _PARTS.split(lowered) if part}
    return bool(parts & words) and parts <= words | _NOUNS
