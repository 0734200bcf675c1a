"""What an operator says of a switchback."""

from dataclasses import dataclass

from controlplane.core.model.errors import require


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchbackRules:
    """Slices of time under `fcfs`, the others under the preset, and when that ends. Times in seconds.

    Raises ``ConfigError``.
    """

    slice_s: float = 0.0  # length of a slice, ten times a program's completion or more; 0: no experiment
    washout_s: float = 600.0  # who comes so near a switch does not count, nor does any program's time beyond it
    stock_every: int = 2  # one slice of so many is under `fcfs`
    loss_ratio: float = 0.0  # back to `fcfs` once completion is surely longer by more than this
    gain_ratio: float = 1.0  # the preset stays once completion is surely shorter by more than this; 1: measured on

    def __post_init__(self) -> None:
        require("slice_s", self.slice_s, low=0, high=7 * 86_400)
        require("washout_s", self.washout_s, low=1, high=86_400)
        require("stock_every", self.stock_every, low=2, high=20)
        require("loss_ratio", self.loss_ratio, low=0, high=10)
        require("gain_ratio", self.gain_ratio, low=0, high=1)
        if self.slice_s:
            require("slice_s", self.slice_s, low=4 * self.washout_s, high=7 * 86_400)

    @property
    def on(self) -> bool:
        return self.slice_s > 0
