"""How many turns a program has left, given how many it has had, from those that ended and those that still run.

Who has not ended yet tells as much as who has: at any time the short ones of a class have ended and the long ones
have not, most of all where the short ones go first, so that a mean over the ended ones would be too short. Each
program that ends a turn meets its fate: it goes on, or that was its last. With d(k) of n(k) such fates being ends,
the share of programs that live on beyond turn k is the product of 1 - d/n up to it (Kaplan and Meier, 1958), and
what is left is the sum of those products from there on.
"""

from dataclasses import dataclass, field

_FADE = 1 - 1 / 128  # of the weight of a fate with each later one at that turn: what runs now is like the latest
_MOST_TURNS = 1024  # beyond that a program's fate tells of no other's
_MORE_RATIO = 0.25  # of what is reached: so much more is supposed behind all that was seen


@dataclass(slots=True, kw_only=True)
class Survival:
    """Fates by turns ended: index k is of programs that had k."""

    fates: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    # Turns left by turns ended, summed up when they are asked for; empty: anew. No state of its own.
    ahead: list[float] = field(default_factory=list, compare=False)

    def observe_survival(self, turns: int) -> None:
        self._add(turns, 0.0)

    def ended(self, turns: int) -> None:
        self._add(turns, 1.0)

    def undo_end(self, turns: int) -> None:
        """It had not: its fate is open again."""
        if turns < len(self.fates) and self.fates[turns] >= 1 and self.ends[turns] > 0:
            self.fates[turns] -= 1
            self.ends[turns] = max(0.0, self.ends[turns] - 1)
            self.ahead.clear()
            while self.fates and not self.fates[-1]:
                del self.fates[-1], self.ends[-1]

    def left(self, reached: int) -> tuple[float, float]:
        """How many fates tell of programs that reached so many turns, and the turns that those had left on average.

        0 turns: of programs that are new, which have one turn at least.
        """
        at = max(1, reached)
        if at >= len(self.fates) or not self.fates[at]:
            return 0.0, 0.0
        if not self.ahead:
            self._sum_up()
        return self.fates[at], self.ahead[at] + (not reached)

    def _add(self, turns: int, ended: float) -> None:
        if not 0 < turns < _MOST_TURNS:
            return
        more = turns + 1 - len(self.fates)
        if more > 0:
            self.fates += [0.0] * more
            self.ends += [0.0] * more
        self.fates[turns] = _FADE * self.fates[turns] + 1
        self.ends[turns] = _FADE * self.ends[turns] + ended
        self.ahead.clear()

    def _sum_up(self) -> None:
        left = more_turns(len(self.fates))
        ahead = [0.0] * len(self.fates)
        for turns in range(len(self.fates) - 1, 0, -1):
            fates = self.fates[turns]
            left = (1.0 - self.ends[turns] / fates if fates else 1.0) * (1.0 + left)
            ahead[turns] = left
        self.ahead = ahead


def more_turns(reached: int) -> float:
    """What a program is supposed to have left that has had more turns than any that was seen."""
    return max(1.0, _MORE_RATIO * reached)
