"""What agents' hooks said is kept for a while, to be said again."""

from controlplane.emit.batching import Packed
from controlplane.emit.resend_buffer import ResendBuffer


def packed(name: str, size: int = 10) -> Packed:
    return Packed(data=name.encode().ljust(size), events=1)


def test_what_was_confirmed_since_is_taken_in_its_order() -> None:
    said = ResendBuffer()
    said.add([packed("a")], 10)
    said.add([packed("b"), packed("c")], 20)
    assert said.take_since(15) == [packed("b"), packed("c")]
    assert said.take_since(15) == [], "it is kept again once it is confirmed again"
    assert said.take_since(0) == [packed("a")]


def test_the_oldest_go_where_there_are_too_many() -> None:
    said = ResendBuffer()
    for number in range(5):
        said.add([packed(str(number), 1 << 20)], number)
    assert said.take_since(0) == [packed(str(number), 1 << 20) for number in range(1, 5)]


def test_nothing_is_kept_for_longer_than_an_hour() -> None:
    said = ResendBuffer()
    said.add([packed("a")], 0)
    said.add([packed("b")], 3601 * 10**9)
    assert said.take_since(0) == [packed("b")]
