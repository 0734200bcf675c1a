"""What ``generate_reference.py`` cannot read from the code: meanings, units, who publishes and who obeys."""

# What a key means, where the comment beside it in the code is too short for somebody who does not read the code.
MEANINGS = {
    "node": "name of the serving node: part of every subject, of the stream's name and of file names",
    "preset": "the named set of policies to start from",
    "nats_url": "NATS server to use; empty: start an embedded one",
    "state_dir": "where snapshots, the embedded server's store and the endpoint file live; empty: "
    "`$XDG_STATE_HOME/penstock`, else `~/.local/state/penstock`",
    "time_scale": "for demos: engine seconds that pass in one second of the wall clock",
    "heartbeat_s": "between two heartbeats to the gates",
    "lease_s": "silence after which a gate considers the daemon lost; at least two heartbeats",
    "snapshot_s": "between two snapshots; a change of the window writes one at once",
    "host.cpus": "CPUs that tools may use; 0: what the affinity mask and the cgroup leave this process",
    "host.probe_interval_s": "between two samples of the tool host",
    "control.interval_s": "the control interval: load is sensed, silence swept and the window announced once in it",
    "control.overdue_s": "who has waited this long for a slot goes first, whatever the packing policy says",
    "control.stall_s": "with a queue and no turn in the engine for so long, the head is let in",
    "control.resync_s": "least time between two requests for one publisher's state",
    "control.grant_s": "lease of a grant at the gate; each turn renews it",
    "control.overload.persistence": "control intervals in a row before the CPU verdict changes, and before the KV "
    "verdict clears",
    "control.overload.cpu_slowdown_high": "r from which crowded CPUs count as overloaded",
    "control.overload.cpu_slowdown_low": "r below which they count as clear",
    "control.overload.cpu_tools_low": "tools over CPUs, below which they count as clear",
    "control.overload.cpu_use_low": "CPU use of the host, where it is known, below which it is not overloaded",
    "control.overload.kv_high": "KV use u from which the cache counts as overloaded, at once",
    "control.overload.kv_low": "u below which it counts as clear",
    "control.overload.kv_slack": "u below which the window may grow",
    "control.overload.kv_cold_return": "a return that finds less than this share of its last prompt cached is "
    "cold: a sign of thrashing where the pool has no slack",
    "control.silence.end_after_reply_s": "silence after a reply without a tool call, which ends the program",
    "control.silence.pause_after_s": "silence with no tool open, after which a program's slot is taken back",
    "control.silence.pause_after_longest_gaps": "the same, as a multiple of the program's longest gap so far; the "
    "longer of the two holds",
    "control.silence.end_after_s": "silence after which a program without a slot has ended",
    "control.silence.ask_publisher_after_s": "silence of a publisher that holds work, after which it is asked for "
    "its state",
    "control.silence.ask_publisher_every_s": "between two such requests",
    "control.silence.ask_publisher_times": "unanswered requests after which the publisher is forgotten",
    "admission.fixed.window": "programs at once; 0: no limit",
    "admission.capacity.watermark_high": "share of the pool up to which programs are let in",
    "admission.capacity.watermark_low": "share of the pool below which they are",
    "admission.capacity.interval_s": "between two looks",
    "retention.ttl.host_blocks_per_s": "blocks that come back from the host in a second; 0: none do",
    "retention.ttl.static_s": "every pin's time; 0: it is chosen",
    "packing.by_tier.idleness_cycles": "a program's last cycles that its idleness is taken from",
    "retention.tiers.interval_s": "between two looks",
    "retention.tiers.idleness_cycles": "a program's last cycles that its idleness is taken from",
    "retention.watermarks.interval_s": "between two looks",
    "retention.watermarks.half_life_s": "in which an acting program's weight in the demand falls by half; 0: never",
    "retention.watermarks.watermark_high": "share of the pool down to which programs are paused",
    "admission.aimd.waste": "the share of the forecast demand that may exceed the pool is this times the square of "
    "a turn's own share of the engine's time over the time of computing a context again; 0: none",
    "admission.aimd.alpha": "programs added to the window in an interval with slack",
    "admission.aimd.beta": "factor on the window in an interval with overload",
    "admission.aimd.interval_s": "least time between two steps of the window",
    "admission.aimd.window_initial": "the window at the start",
    "admission.aimd.window_min": "its lower bound",
    "admission.aimd.window_max": "its upper bound",
    "admission.aimd.kv_high": "share of the pool that the forecast of W_kv may fill",
    "packing.pressure_aware.aged": "among short sessions, time waited counts against size",
    "priority.mlfq.shares": "footprints up to these shares of the pool begin at levels 0, 1, ...",
    "priority.mlfq.quota_chunks": "prefill chunks' worth of tokens that level 0 serves a program in a window; each "
    "lower level twice as much",
    "priority.mlfq.window_s": "the window of the quotas",
    "priority.mlfq.promote_s": "each such time of waiting raises a call one level",
    "priority.mlfq.promotions": "by how many levels at most",
    "memory.opportunistic.shrink": "a chunk shrinks before contexts go that somebody waits for",
    "memory.opportunistic.aligned": "contexts go by level and size, else by last use",
    "packing.pressure_aware.long_share": "share of the pool from which a session counts as long",
    "priority.plas.quantum_chunks": "prefill chunks' worth of tokens that a program is served in class 0; twice as "
    "much in each further one",
    "priority.plas.classes": "how many classes there are",
    "priority.plas.starve_s": "a call that has waited so long goes before all classes",
    "retention.least_waste.host_blocks_per_s": "blocks copied to the host, or back, in a second; 0: none are moved",
    "retention.least_waste.interval_s": "between two looks at the contexts that are kept",
    "retention.least_waste.ttl_max_s": "the longest pin",
    "priority.ttl_first.pinned_first": "a call whose program's context is pinned goes before earlier programs",
    "placement.session.link_tokens_per_s": "tokens' KV that one engine sends another; 0: none (the simulator then "
    "takes its hardware's)",
    "memory.lru.keep_pins": "calls wait for pinned memory, as in Continuum; else pins go when a call needs them",
    "retention.ttl.cold_start": "K: tool calls to see before their times are believed",
    "retention.ttl.ttl_max_s": "the longest pin",
    "retention.ttl.learned": "pins by what was seen; else T_default for every one",
    "retention.opportunistic.cold_start": "Continuum's K: tool calls to see before their times are believed",
    "retention.opportunistic.ttl_max_s": "the longest pin",
    "gate.retry_after_ns": "what a refused client is told to wait, in seconds of the wall clock",
    "gate.time_scale": "how much faster than the wall clock the gate's clock runs",
    "retention.opportunistic.kv_high": "KV use u from which holding memory costs its whole time",
}

UNITS = {"_s": "s", "_ms": "ms", "_tokens": "tokens", "_blocks": "blocks", "_ratio": "ratio"}
UNIT_OF = {
    "time_scale": "factor",
    "cpus": "CPUs",
    "persistence": "intervals",
    "alpha": "programs",
    "beta": "factor",
    "window": "programs",
    "window_initial": "programs",
    "window_min": "programs",
    "window_max": "programs",
    "cold_start": "tool calls",
    "pause_after_longest_gaps": "gaps",
    "ask_publisher_times": "requests",
    "cpu_slowdown_high": "ratio",
    "cpu_slowdown_low": "ratio",
    "cpu_tools_low": "ratio",
    "cpu_use_low": "ratio",
    "shares": "ratios",
    "quota_chunks": "chunks",
    "quantum_chunks": "chunks",
    "classes": "classes",
    "host_blocks_per_s": "blocks/s",
    "link_tokens_per_s": "tokens/s",
    "promotions": "levels",
    "kv_high": "ratio",
    "watermark_high": "ratio",
    "watermark_low": "ratio",
    "kv_low": "ratio",
    "kv_slack": "ratio",
    "kv_cold_return": "ratio",
    "long_share": "ratio",
}

PUBLISHERS = {
    "ProgramArrived": "tool runtime; gate (for a child)",
    "TurnQueued": "gate",
    "TurnAbandoned": "gate",
    "TurnSubmitted": "engine",
    "FirstToken": "engine",
    "TurnEnded": "engine",
    "ReplyRead": "gate",
    "EnvironmentWanted": "tool runtime",
    "ToolEnqueued": "tool runtime",
    "ToolStarted": "tool runtime",
    "ToolEnded": "tool runtime",
    "ProgramEnded": "tool runtime; gate (for a request without identity)",
    "PoolSampled": "engine",
    "HostSampled": "daemon (its host probe)",
    "CommandApplied": "engine, gate",
    "CommandRejected": "engine, gate",
    "PublisherState": "any publisher, when asked",
}
OBEYED_BY = {
    "SetWindow": "gate",
    "Admit": "gate",
    "Pause": "gate",
    "Restore": "gate",
    "Retain": "engine",
    "Release": "engine",
    "Demote": "engine (SGLang with HiCache)",
    "Prefetch": "engine (SGLang with HiCache)",
    "Discard": "engine",
    "Label": "engine",
    "SetPriority": "engine",
    "StateRequest": "the publisher named",
    "StartTool": "the agent that asked",
    "PrepareEnvironment": "the agent that asked",
    "CancelEnvironment": "the agent that asked",
}

STATES_PAGE = (
    "Where a program stands with the admission window. Drawn from the one transition table,",
    "[`controlplane/core/lifecycle.py`](../../controlplane/core/lifecycle.py).",
    "",
    "This is one of two dimensions. The other, whether the program reasons (a turn is open) or acts (none is), is",
    "counted and not tabled: turns may overlap, and a paused program's tool may still run. Only root programs hold",
    "slots; a child follows its root.",
)

PRESETS_PAGE = """# The presets side by side

{edit}
Simulated: what was run, and where `mars` wins and loses, is in
[the presets compared](../explanation/presets-compared.md). ± is a 95% interval over seeds by Student's t. Goodput
counts programs that end within 1, 2 and 3 times their time alone on the engine. *Recompute* and *caching* are the
shares of the pool's space-time that went into computing lost contexts again and into holding contexts of acting
programs (ThunderAgent's ledger). Times in seconds; the lowest mean JCT of each column is bold.

```bash
penstock sweep-report bench/results/all-presets.csv --markdown
```

{tables}"""

PROFILES_PAGE = """# Hardware profiles

{edit}
A profile says how long the simulator's and the engine double's steps take, and how large the KV pool is. Choose one
with `--profile NAME`, or give the path of a file of your own. Built-in profiles are of Llama-3.1-8B in
bf16 on one device, but for `b200-llama31-70b`.

{table}

Where the figures come from:

{sources}

`measured` profiles repeat a calibration of a running engine. `analytic` ones are a roofline: no one has measured
them here, and their efficiencies are assumptions that the file states. Compare policies on them; do not plan
capacity with them.

## File format

JSON with `kind` `measured`, `fitted` or `analytic`, `name`, `source`, and:

- `measured`: `prefill_s` (prompt tokens to seconds to the first token, at least two lengths), `decode_s`
  (`"batch x context"` to seconds a step: what the coefficients were fitted to), `step_overhead_us`,
  `decode_base_us`, `decode_sequence_us`, `decode_context_ns`, `kv_pool_tokens`, `max_context_tokens`.
- `fitted`, what [`penstock calibrate`](cli.md) writes: coefficients in place of the prefill curve,
  `prefill_token_us`, `attention_ps` (of a pair of tokens) and `attends_anew` (true: a chunk's attention goes
  through the whole sequence again, as SGLang's `torch_native` does on CPUs), `turn_overhead_us` (of each turn,
  before the scheduler has it: HTTP server, chat template, tokenizer) and `results_late` (true: what a step did is
  known when the next one is done, as with SGLang's overlap scheduler on a CPU), with the measured `prefill_s` and
  `decode_s` beside them.
- `analytic`: `flops_per_s`, `memory_bytes_per_s`, `memory_bytes`, `linear_efficiency_ratio`,
  `attention_efficiency_ratio`, `bandwidth_efficiency_ratio`, `memory_use_ratio`, `step_overhead_us`, `sequence_us`;
  and the model: `parameters`, `layers`, `hidden`, `kv_heads`, `head_dim`, `bytes_per_value`, `max_context_tokens`
  (default: Llama-3.1-8B).

`measured` and `fitted` ones may name `kv_bytes_per_token`, which transfers between memory tiers take their time
from. A missing, unknown or non-positive field is refused with the file's path and the field's. A prefill chunk
costs the difference of two points of the cumulative prefill curve, plus the overhead of a step (and with
`attends_anew` the square of its whole length times `attention_ps`); a decode step costs `base + sequence * batch
+ context * tokens`. See [the engine model](../explanation/the-engine-model.md).
"""
