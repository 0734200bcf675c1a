"""How much room admission keeps for output that is still to come.

The rule is SGLang's: a candidate reserves its own output up to a limit; running calls a share of theirs that
starts high, decays with the steps that go well and rises after a retraction.
"""

from collections.abc import Sequence

from controlplane.lab.sim.call import Progress
from controlplane.lab.sim.decode_batch import DecodeBatch

_MAX_CANDIDATE_TOKENS = 4096  # SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION
_INITIAL_RATIO = 0.7
_MIN_RATIO = 0.098
_DECAY_STEPS = 600
_RETRACT_STEPS = 20


class OutputReserve:
    """The share, as a function of the decode step: evaluated only when a call asks for admission."""

    def __init__(self, batch: DecodeBatch[Progress]) -> None:
        self._batch = batch
        self._ratio = _INITIAL_RATIO
        self._since_step = 0

    def of_candidate(self, turn: Progress) -> int:
        """Tokens for a call that is not running."""
        return min(turn.remaining_tokens, _MAX_CANDIDATE_TOKENS)

    def of_running(self) -> int:
        """Tokens for the calls that run."""
        decay = (_INITIAL_RATIO - _MIN_RATIO) / _DECAY_STEPS
        ratio = max(_MIN_RATIO, self._ratio - decay * (self._batch.step - self._since_step))
        return int(ratio * self._batch.remaining_tokens)

    def on_retract(self, output_tokens: Sequence[int]) -> None:
        """Reserve more: the share that the running calls, of these whole outputs, have produced and a bit."""
        total = sum(output_tokens)
        produced = total - self._batch.remaining_tokens
        self._ratio = min(1.0, (produced + _RETRACT_STEPS * len(output_tokens)) / total) if total else 1.0
        self._since_step = self._batch.step

    def reset(self) -> None:
        """Nothing runs: begin again."""
        self._ratio = _INITIAL_RATIO
        self._since_step = self._batch.step
