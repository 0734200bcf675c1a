"""Copies in host memory that the engine gives up, over a double of SGLang's tree."""

from collections.abc import Iterable

import pytest
from sglang_double import SglangDouble
from unified_tree_double import KeyDouble, TreeDouble, add_classes, scheduler_double

from engine_hooks.sglang.engine_view import EngineView
from engine_hooks.sglang.host_copies import HostCopies, Node
from engine_hooks.sglang.host_tier import HostTier

SYSTEM, FIRST, SECOND, OTHER = range(40), range(100, 120), range(200, 230), range(300, 350)


@pytest.fixture(autouse=True)
def classes(sglang: SglangDouble) -> None:
    add_classes(sglang)


class Scene:
    """A program whose context lies in three nodes, the first shared with another's."""

    def __init__(self) -> None:
        self.tree = TreeDouble()
        self.key = self.tree.add(SYSTEM, FIRST, SECOND)
        self.other = self.tree.add(SYSTEM, OTHER)
        self.host = HostTier(EngineView(scheduler_double(self.tree)))

    def demote(self) -> None:
        assert self.host.demote("p", self.key, [self.other.late]).tokens == 50

    def give_up(self, key: KeyDouble | None = None) -> None:
        """The engine needs room in host memory."""
        self.host.copies.freed(self.tree.give_up(key or self.key))

    def news(self) -> list[tuple[str, int]]:
        return list(self.host.copies.news())


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_what_was_moved_on_command_is_no_news(scene: Scene) -> None:
    scene.demote()
    assert scene.news() == []


def test_what_the_engine_gives_up_is_told_with_what_is_left(scene: Scene) -> None:
    scene.demote()
    scene.give_up()
    assert scene.news() == [("p", 20)]
    assert scene.news() == [], "once"
    scene.give_up(KeyDouble([*SYSTEM, *FIRST]))
    assert scene.news() == [("p", 0)]


def test_what_is_given_up_of_others_is_no_news(scene: Scene) -> None:
    scene.demote()
    scene.give_up(scene.other)
    assert scene.news() == []


def test_a_context_that_came_back_is_not_followed_any_more(scene: Scene) -> None:
    scene.demote()
    scene.host.copies.forget("p")
    scene.give_up()
    assert scene.news() == []


def test_what_a_policy_evicts_is_told_when_the_last_of_it_has_left(scene: Scene) -> None:
    assert scene.host.evict_tail("p", scene.key, 10) == 30, "by whole nodes"
    assert scene.news() == []
    assert scene.host.evict_tail("p", scene.key, 60) == 20, "another's context needs the rest"
    assert scene.news() == [("p", 50)]
    scene.give_up()
    assert scene.news() == [("p", 20)]


def test_what_has_no_copy_leaves_none(scene: Scene) -> None:
    for node in scene.tree._nodes:
        node.on_host = False
    assert scene.host.evict_tail("p", scene.key, 60) == 50
    assert scene.news() == [("p", 0)]


def test_a_discarded_context_is_not_followed(scene: Scene) -> None:
    assert scene.host.discard(scene.key, [scene.other.late]).tokens == 50
    scene.give_up()
    assert scene.news() == []


def test_after_a_reset_nothing_is_known(scene: Scene) -> None:
    scene.demote()
    scene.host.copies.tell("p")
    scene.host.forget_all()
    scene.give_up()
    assert scene.news() == []


class LoadingCore:
    """A double of a tree core that loads the path already: it has nothing to load of it."""

    def build_load_back_spec(self, handle: int) -> Iterable[object]:
        return type("Spec", (), {"host_indices": ()})(), {}


def test_what_is_on_its_way_back_is_not_noted() -> None:
    copies = HostCopies()
    copies.note("p", LoadingCore(), [Node(1, 0, 20)])
    copies.tell("p")
    assert list(copies.news()) == [("p", 0)]
