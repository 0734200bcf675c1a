"""What takes the place of the programs: all that is known of one, and the keys."""

from controlplane.operate.printing import duration
from controlplane.operate.tables import PROGRAM_CELLS, phase_word
from controlplane.operate.top.lines import Line, padded, wrapped
from controlplane.operate.top.programs import PHASE_STYLE
from controlplane.wire.control import Fields

FOOTER = "q quit  ↑↓ select  Enter details  / filter  s sort  ? keys"
DETAILS_FOOTER = "Esc back  ↑↓ the next program  q quit"
FILTER_FOOTER = "Enter show programs with this in their id, tenant, engine or tool  Esc back"
KEYS_FOOTER = "Esc back  q quit"
_LABEL = 16
_STYLES = {phase_word(phase): style for phase, style in PHASE_STYLE.items()}
_KEYS = (
    ("q, Ctrl-C", "quit"),
    ("↑ ↓ PgUp PgDn", "select a program, which then stays on its line (Home, End, too)"),
    ("Enter", "all that is known of it, and what it waits for"),
    ("/", "only programs with this in their id, tenant, engine or tool"),
    ("s or >, S or <", "sort by the next column, by the one before"),
    ("Esc", "back; select none; end the filter"),
)
_MEANINGS = {
    "reasoning": "the engine works for it",
    "waiting": "its turn waits at the gate",
    "acting": "its tool runs",
    "idle": "none of these",
    "unnamed turns": "their requests named no program",
    "phases": "what active programs do; those that wait are not among them",
    "plots": "window and active have one scale, waiting has its own",
}


def keys(width: int) -> list[Line]:
    """The keys, and what words and colours mean."""
    lines = [line for key, words in _KEYS for line in _labelled(key, words, width)]
    for name, words in _MEANINGS.items():
        lines += _labelled(name, words, width, _STYLES.get(name, ""))
    return lines


def details(program: Fields, width: int, *, is_gone: bool) -> list[Line]:
    """Of a program the row in full."""
    cells = {name: text(program) for name, text in PROGRAM_CELLS.items()}
    kept = f"{program.kv_blocks:,} blocks in {program.kv_tier}" if program.kv_tier in ("hbm", "host") else ""
    told = {
        "program": [cells["program"]],
        "": ["it has ended, or is no longer listed; this was the last of it"] if is_gone else [],
        "waits for": [cells["waits for"]],
        "status": [cells["status"], cells["phase"]],
        "tool": [cells["tool"]],
        "context": [f"{cells['turns']} turns", f"{cells['tokens']} tokens", kept],
        "times": [
            f"{name} {words}"
            for name, words in (
                ("age", duration(program.age_ns)),
                *((name, cells[name]) for name in ("waited", "idle", "idleness")),
                ("pinned for another", cells["pinned"]),
            )
            if words
        ],
        "engine": [cells["engine"], f"moved {program.moves} times" if program.moves else ""],
        "tenant": [cells["tenant"]],
        "parent": [program.parent_id],
        "decisions": [f"penstock explain {program.program_id}"],
    }
    return [
        line
        for label, words in told.items()
        if any(words)
        for line in _labelled(label, ", ".join(filter(None, words)), width)
    ]


def _labelled(label: str, words: str, width: int, style: str = "") -> list[Line]:
    parts = wrapped(words, max(1, width - _LABEL), 4)
    labels = [label, *[""] * (len(parts) - 1)]
    return [((padded(name, _LABEL), style or "bold"), (part, "")) for name, part in zip(labels, parts, strict=True)]
