"""Text as agents, engines and their clients may send it, for whoever shows it."""

import unicodedata

from hypothesis import strategies as st

NAMES = {
    "clear screen": "p\x1b[2J\x1b[H",
    "title": "p\x1b]0;pwned\x07",
    "string": "p\x1bP1$r\x1b\\",
    "C1": "p\x9b31m\x9d0;x\x9c",
    "row": "p\nvictim  active  reasoning",
    "line": "p\r\x0b\x0c\x1c\x85\u2028\u2029x",
    "tab": "p\t\bq",
    "nothing": "p\0q\x7f",
    "right to left": "p\u202egnp.exe\u2066\u200f",
    "no width": "p\u200b\u200d\ufeff\u2060q",
    "half a pair": "p\ud800q\udfff",
    "marks": "p" + "\u0335\u0489\u20dd" * 40,
    "unassigned": "p\u0378\ue000\U000e0001\U0010ffff",
    "closing tag": "[/nope]",
    "link": "[link=http://evil.example]p[/link][bold red]",
    "emoji code": ":smile: [red]",
    "element": "<script>document.title='pwned'</script><img src=x onerror=document.title='pwned'>",
    "attribute": "\"' onmouseover='document.title=1",
    "format": "%s%n {} {0.__class__} ${jndi:ldap://x} $(id) `id`",
    "formula": '=HYPERLINK("http://evil.example")',
    "label": 'p"} 1\npenstock_bus_connected{x="\\',
    "path": "../../etc/passwd",
    "wide": "日本語の名前" * 20,
    "emoji": "👩‍👩‍👧‍👦🏳️‍🌈" * 10,
    "arabic": "مرحبا שלום",
    "spaces": "p" + " " * 200 + "victim",
    "long": "n" * 257,
    "very long": "n" * 100_000,
}

names = st.one_of(st.sampled_from(sorted(NAMES.values())), st.text(min_size=1, max_size=300))


def stray(text: str) -> str:
    """The characters that a terminal may obey, or that do not show in their own place; a line feed is none."""
    return "".join(each for each in text if each != "\n" and unicodedata.category(each)[0] in "CZ" and each != " ")
