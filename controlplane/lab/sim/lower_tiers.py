"""KV memory below the device: host DRAM, CXL. What leaves one tier goes to the next, what leaves the last is lost.

A copy is the beginning of a program's own context, in blocks; the shared prefix before it is not copied. It stays
when the context is loaded back, as HiCache's does, and falls to its tier's order: the memory policy's rank of the
program's label, then last use. Copies are written beside the computation and hold nobody up; loads are paid by the
prefill that needs them.

**Paper**: AgentServeSim §3.5 and Table 7; MORI §4.3.2 (the order in host memory).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from controlplane.core.model.errors import ConfigError, require
from controlplane.lab.sim.hardware import PS, Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSpec:
    """One tier: its size in tokens, and how fast it is read, in GB (10^9 bytes) a second."""

    name: str
    tokens: int
    gb_per_s: float

    def __post_init__(self) -> None:
        require(f"{self.name}.tokens", self.tokens, low=1, high=1e15)
        require(f"{self.name}.gb_per_s", self.gb_per_s, low=0, high=1e6, ends="(]")

    def __str__(self) -> str:
        return f"{self.name}:{self.tokens}:{self.gb_per_s:g}"


def parse_tier(text: str) -> TierSpec:
    """``NAME:TOKENS:GB_PER_S``, as ``dram:2000000:50``. Raises ``ConfigError``."""
    name, _, sizes = text.partition(":")
    try:
        tokens, gb_per_s = sizes.split(":")
        spec = TierSpec(name=name, tokens=int(tokens), gb_per_s=float(gb_per_s))
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(
            f"tier: expected NAME:TOKENS:GB_PER_S, as dram:2000000:50, got {text!r}", field="tier"
        ) from error
    return spec


class Tier:
    """Copies in one tier: blocks by program, least recently used first."""

    def __init__(self, blocks: int, load_ps_per_block: int, rank: Callable[[str], int]) -> None:
        self.total_blocks = blocks
        self.used_blocks = 0
        self.load_ps_per_block = load_ps_per_block
        self._rank = rank
        self._copies: dict[str, int] = {}

    def held(self, program_id: str) -> int:
        """Blocks of the program's beginning that are here."""
        return self._copies.get(program_id, 0)

    def touch(self, program_id: str) -> None:
        """It was used just now."""
        if (blocks := self._copies.pop(program_id, 0)) > 0:
            self._copies[program_id] = blocks

    def put(self, program_id: str, blocks: int) -> list[tuple[str, int]]:
        """Hold the program's first ``blocks``, or as many as can be. Returns who made room, and what each had.

        Nobody makes room for a copy that ranks below its own.
        """
        before, left = self.held(program_id), []
        self.touch(program_id)
        blocks = min(blocks, self.total_blocks)
        while (short := blocks - before - (self.total_blocks - self.used_blocks)) > 0:
            victim = self._victim(program_id)
            if not victim:
                blocks -= short
                break
            held = self._copies[victim]
            left.append((victim, held))
            self._set(victim, max(0, held - short))
        if blocks > before:
            self._set(program_id, blocks)
        return left

    def cut(self, program_id: str, blocks: int) -> None:
        """What is beyond the program's first ``blocks`` is worth nothing any more."""
        if self.held(program_id) > blocks:
            self._set(program_id, blocks)

    def clear(self) -> None:
        self._copies.clear()
        self.used_blocks = 0

    def _victim(self, newcomer: str) -> str:
        lowest, victim = self._rank(newcomer) + 1, ""
        for name in self._copies:
            if name != newcomer and (rank := self._rank(name)) < lowest:
                lowest, victim = rank, name
                if rank <= 0:
                    break  # nothing ranks lower, and the least recently used come first
        return victim

    def _set(self, program_id: str, blocks: int) -> None:
        self.used_blocks += blocks - self._copies.get(program_id, 0)
        if blocks:
            self._copies[program_id] = blocks
        else:
            self._copies.pop(program_id, None)


def build_tiers(
    specs: Sequence[TierSpec], profile: Profile, block_tokens: int, rank: Callable[[str], int]
) -> "LowerTiers":
    """The tiers of an engine. Raises ``ConfigError`` where the profile does not say how large a token's KV is."""
    if not profile.kv_bytes_per_token:
        raise ConfigError(
            f"profile {profile.name}: expected kv_bytes_per_token, which a transfer's time is worked out from",
            field="kv_bytes_per_token",
        )
    block_bytes = profile.kv_bytes_per_token * block_tokens  # a GB a second is a byte a ns
    return LowerTiers(
        [Tier(max(1, spec.tokens // block_tokens), round(block_bytes / spec.gb_per_s * PS), rank) for spec in specs]
    )


class LowerTiers:
    """The tiers below the device, the fastest first. ``loaded_blocks`` counts what came back.

    ``news``: programs of whose contexts something left the device or a tier, until somebody has told of it.
    """

    def __init__(self, tiers: Sequence[Tier]) -> None:
        self._tiers = tiers
        self.loaded_blocks = 0
        self.news: dict[str, None] = {}

    @property
    def total_blocks(self) -> int:
        return sum(tier.total_blocks for tier in self._tiers)

    @property
    def used_blocks(self) -> int:
        return sum(tier.used_blocks for tier in self._tiers)

    def keep(self, program_id: str, blocks: int) -> None:
        """The device is about to drop some of the program's ``blocks``."""
        arriving = [(program_id, blocks)]
        for tier in self._tiers:
            leaving = []
            for name, held in arriving:
                leaving += tier.put(name, held)
            arriving = leaving
            self.news |= dict.fromkeys(name for name, _ in leaving)

    def find(self, program_id: str, device_blocks: int, usable_blocks: int) -> tuple[int, int]:
        """Blocks after the first ``device_blocks`` that can be loaded, and how long that takes in ps."""
        reach, load_ps = device_blocks, 0
        for tier in self._tiers:
            more = min(tier.held(program_id), usable_blocks) - reach
            if more > 0:
                load_ps += more * tier.load_ps_per_block
                reach += more
        return reach - device_blocks, load_ps

    def holds(self, program_id: str) -> bool:
        """Whether anything of it is here."""
        return any(tier.held(program_id) for tier in self._tiers)

    def touch(self, program_id: str) -> None:
        """The program came back."""
        for tier in self._tiers:
            tier.touch(program_id)

    def cut(self, program_id: str, blocks: int) -> None:
        """The program's context goes on differently after ``blocks``; 0: nothing of it is wanted any more."""
        for tier in self._tiers:
            tier.cut(program_id, blocks)

    def clear(self) -> None:
        """Nothing of anybody is wanted any more."""
        for tier in self._tiers:
            tier.clear()
