"""Rendezvous hashing: of several places the one with the largest weight has a name, wherever that is asked.

A place that comes takes its share of names from each other one; those of one that goes spread over all.
"""

from collections.abc import Callable
from hashlib import blake2b


def weights_of(name: str) -> Callable[[str], bytes]:
    """The weight of each place for this name."""
    of_name = blake2b(_bytes(name), digest_size=8)

    def weight(place: str) -> bytes:
        both = of_name.copy()
        both.update(_bytes(place))
        return both.digest()

    return weight


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # a name that came in a header may be anything
