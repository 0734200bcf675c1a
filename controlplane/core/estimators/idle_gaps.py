"""How long programs rest between two turns, and what a silence says: is this a tool that runs, or the end?

Most clients report no tools and say no goodbye. A gap is then all that is seen: from a turn's end to the next turn,
the tool's own time and the agent's and the network's beside it. What a silence of length t means follows from the
gaps that were seen. With h the chance that a program ends after a turn and S(t) the share of gaps longer than t,

    P(it comes back | silent for t)  =  (1 - h) S(t) / ((1 - h) S(t) + h)

S is taken where most is known: of this tool, shrunk to the program itself, shrunk to all programs, shrunk to a
heavy-tailed guess for the time in which nothing was seen. A level is shrunk to the next by counting so many gaps
more that are as that one says.

S may be too low where an end is concluded from it: all levels count the same gaps, h may be too high, and gaps
become longer. So whoever was taken for ended and came back raises a doubt d, of which each end takes off what it
risked by its own word, and (1 - h) S counts e^d times. In the long run no larger share of the ends proves false
than was told, whatever S and h are.

**Paper**: Continuum §4.1 (the empirical distribution of a tool's durations), which knows no end and no silence.
Gibbs and Candès, Adaptive Conformal Inference Under Distribution Shift (2021), equation 2: the doubt.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import exp

from controlplane.core.estimators.quantiles import Durations
from controlplane.core.model.types import seconds

_GUESS_NS = seconds(10)  # the median gap while nothing was seen: two gaps that were seen outweigh it
_PRIOR_GAPS = 2.0  # that the guess counts as among all gaps, and the program's own among a tool's
_PRIOR_OF_ALL = 8.0  # gaps of all programs among a program's own: most of what differs between gaps is chance
_GUESSED_POINTS = 4  # of the guess, and
_MOST_POINTS = 12  # of each level that was seen, stand for the whole of it
_MOST_TOOLS = 512  # names beyond that are counted under the empty name alone
_DOUBT = 0.5  # that an end which proved false adds: the odds of a return are 1.6 times as high from then on
_MOST_DOUBT = 4.0  # 55 times: who always comes back must not keep all others from ending


@dataclass(slots=True, kw_only=True)
class Gaps:
    """The latest gaps, of each tool and (under the empty name) of all programs together."""

    by_tool: dict[str, Durations] = field(default_factory=lambda: {"": Durations()})
    doubt: float = 0.0  # d, from 0 to ``_MOST_DOUBT``

    def add(self, tool: str, gap_ns: int) -> None:
        """A gap ended; ``tool`` is what ran in it, empty where nobody said."""
        self.by_tool[""].add(gap_ns)
        if tool and (tool in self.by_tool or len(self.by_tool) < _MOST_TOOLS):
            self.by_tool.setdefault(tool, Durations()).add(gap_ns)

    def took_for_ended(self, chance: float) -> None:
        """A silent program was taken for ended at that chance of its return."""
        self.doubt = max(0.0, self.doubt - _DOUBT * chance)

    def came_back(self) -> None:
        """One that had been taken for ended had not."""
        self.doubt = min(_MOST_DOUBT, self.doubt + _DOUBT)

    def return_probability(self, survival_probability: float, end_ratio: float) -> float:
        """The chance that a silent program comes back; ``end_ratio``: that one ends after a turn (h)."""
        still = (1.0 - end_ratio) * survival_probability * exp(self.doubt)
        return still / (still + end_ratio) if end_ratio > 0 else 1.0

    def of(self, tool: str) -> Sequence[int]:
        """The gaps of that tool in ns, ascending; of all for the empty name."""
        found = self.by_tool.get(tool)
        return found.ascending if found else ()

    def survival_probability(self, silent_ns: int, tool: str, own_ns: Iterable[int]) -> float:
        """S: the share of gaps longer than ``silent_ns`` for a program with gaps ``own_ns``. In (0, 1]."""
        share = _GUESS_NS / (_GUESS_NS + max(0, silent_ns))
        for seen, prior in self._levels(tool, own_ns):
            beyond = len(seen) - bisect_right(seen, silent_ns)
            share = (beyond + prior * share) / (len(seen) + prior)
        return share

    def tail(self, silent_ns: int, tool: str) -> float:
        """S beyond the longest gap of the tool, where the guess goes on from that gap; 0 before it, and of no tool.

        ``survival_probability`` shrinks level by level, so beyond all that was seen it takes for evidence three
        times that no gap was so long: a tool's gaps are among its programs' and among all.
        """
        seen = self.of(tool) if tool else ()
        if not seen or silent_ns < seen[-1]:
            return 0.0
        return (_GUESS_NS + seen[-1]) / (_GUESS_NS + silent_ns) / (len(seen) + _PRIOR_GAPS)

    def rate(self, silent_ns: int, tool: str, own_ns: Iterable[int], end_ratio: float) -> float:
        """How soon a gap that has lasted for ``silent_ns`` may be expected to end, as a rate (1/ns).

        The greatest of  P(it ends within tau) / E(the time waited for that, tau at most)  over all tau: the index
        by which Gittins ranks what to wait for. It is high at first, falls while the gap outlasts others, and
        counts on nothing that comes late. ``end_ratio``: the chance that the program had ended with its turn (h).
        """
        left = sorted(self._left(max(0, silent_ns), tool, own_ns))
        alive = (1.0 - end_ratio) * sum(weight for _, weight in left)
        scale = (1.0 - end_ratio) / (alive + end_ratio)
        best = ended = waited = 0.0
        for left_ns, weight in left:
            ended += weight * scale
            waited += weight * scale * left_ns
            best = max(best, ended / max(1.0, waited + (1.0 - ended) * left_ns))
        return best

    def _left(self, silent_ns: int, tool: str, own_ns: Iterable[int]) -> list[tuple[float, float]]:
        """What may be left of a gap (ns), and with which weight; the weights sum up to S."""
        age_ns = _GUESS_NS + silent_ns
        quantiles = [(k + 0.5) / _GUESSED_POINTS for k in range(_GUESSED_POINTS)]
        share = _GUESS_NS / age_ns / _GUESSED_POINTS
        found = [(age_ns * q / (1 - q), share) for q in quantiles]
        for seen, prior in self._levels(tool, own_ns):
            whole, first = len(seen) + prior, bisect_right(seen, silent_ns)
            every = max(1, (len(seen) - first) // _MOST_POINTS)
            found = [(left, weight * prior / whole) for left, weight in found]
            found += [
                (seen[at] - silent_ns, min(every, len(seen) - at) / whole) for at in range(first, len(seen), every)
            ]
        return found

    def _levels(self, tool: str, own_ns: Iterable[int]) -> Iterator[tuple[Sequence[int], float]]:
        """What was seen, from the most general to the most special, and how many gaps the one before counts as."""
        yield self.of(""), _PRIOR_GAPS
        yield sorted(own_ns), _PRIOR_OF_ALL
        if tool:
            yield self.of(tool), _PRIOR_GAPS
