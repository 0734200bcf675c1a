"""Bytes that are almost right."""

from collections.abc import Sequence
from random import Random

_NASTY = (
    b"\x00",
    b"\xff" * 9,
    b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"-1",
    b"1e300",
    b"NaN",
    b"9" * 40,
    b'"',
    b"{" * 50,
    b"[" * 50,
    b"\r\n\r\n",
    "\ud800".encode("utf-8", "surrogatepass"),
    b"../" * 8,
)


class Mutator:
    """Draws from a corpus and damages what it drew, one to four times."""

    def __init__(self, random: Random, corpus: Sequence[bytes]) -> None:
        self._random, self._corpus = random, corpus

    def next(self) -> bytes:
        random = self._random
        data = bytearray(random.choice(self._corpus))
        for _ in range(random.randrange(1, 5)):
            at = random.randrange(len(data) + 1)
            match random.randrange(6):
                case 0 if data:
                    data[at % len(data)] ^= 1 << random.randrange(8)
                case 1:
                    del data[at:]
                case 2:
                    del data[at : at + random.randrange(1, 9)]
                case 3:
                    data[at:at] = random.choice(_NASTY)
                case 4:
                    data[at:at] = data[at : at + random.randrange(1, 40)]
                case _:
                    other = random.choice(self._corpus)
                    data[at:] = other[random.randrange(len(other) + 1) :]
        return bytes(data)
