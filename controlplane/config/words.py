"""The meaning of keys whose comment beside the field would be too short for a user; and the keys' units."""

_PREFETCH = "how long before its program's likely return a context in host memory is loaded; 0: when it is needed"
MEANINGS = {
    "state_dir": "directory of snapshots, the embedded server's store and the endpoint file; empty: "
    "`$XDG_STATE_HOME/penstock`, or `~/.local/state/penstock` without that variable",
    "fleet.engines": "engines that the fleet has from the start, each as `NODE/engine-PORT=HOST:PORT`, with "
    "`,plain` behind it for one without a plugin; others are added with `penstock fleet engines add`",
    "fleet.domains": "nodes whose streams lie in a JetStream domain of their own, behind a leaf node, each as "
    "`NODE=DOMAIN`",
    "fleet.kubernetes.engines": "Service whose ready pods are the fleet's engines, in place of those that "
    "`penstock fleet engines` adds; empty: none",
    "fleet.kubernetes.leader": "EndpointSlice in which the leader writes its pod, for the Service that gateways "
    "ask; empty: none",
    "shadow.settings": "what the shadow has otherwise than the configuration in force, beside the preset: each as "
    "`KEY=VALUE`, such as `admission.kv_high=0.9`; `KEY=` as if the key were not given",
    "control.interval_s": "the control interval: once in each, the daemon judges load, sweeps silent programs and "
    "moves the window",
    "control.overdue_s": "a program that has waited this long for a slot is no longer passed over, and goes first "
    "unless the packing policy itself ages the queue (least_left does)",
    "control.stall_s": "if programs wait and the engine has had no turn for this long, the head of the queue is "
    "let in",
    "control.resync_s": "minimum time between two requests for the same publisher's state",
    "control.grant_s": "lease of a grant at the gate; each turn renews it",
    "control.overload.persistence": "consecutive control intervals before the CPU verdict changes, and before the "
    "KV verdict clears",
    "control.overload.cpu_slowdown_high": "slowdown r at which crowded CPUs count as overloaded",
    "control.overload.cpu_slowdown_low": "slowdown r below which they count as clear",
    "control.overload.cpu_tools_low": "tools per CPU below which the CPUs count as clear",
    "control.overload.cpu_use_low": "CPU use of the host, where known, below which it is not overloaded",
    "control.overload.cpu_use_high": "CPU use at which stalls count as a sign of crowded CPUs",
    "control.overload.cpu_stall_high": "share of time for which some task waited for a CPU (PSI), above what it is "
    "while no tool runs, at which crowded, busy CPUs count as overloaded",
    "control.overload.cpu_stall_low": "the same share, below which they may count as clear",
    "control.overload.kv_high": "KV use u at which the cache counts as overloaded, at once",
    "control.overload.kv_low": "KV use u below which it counts as clear",
    "control.overload.kv_slack": "KV use u below which the window may grow",
    "control.overload.kv_cold_return": "a return that finds less than this share of its last prompt cached is "
    "cold, a sign of thrashing if the pool has no slack",
    "control.silence.end_after_reply_s": "silence after a reply without a tool call that ends the program",
    "control.silence.end_below": "a silent program has ended once its chance of coming back, by the gaps seen, "
    "falls below this",
    "control.silence.unused_slot_s": "time after which a slot is taken back if its program's turn has not come",
    "control.silence.end_after_s": "silence that ends a program without a slot",
    "control.silence.ask_publisher_after_s": "silence after which a publisher that holds work is asked for its "
    "state",
    "control.silence.ask_publisher_every_s": "time between two such requests",
    "control.silence.ask_publisher_times": "unanswered requests after which the publisher is forgotten",
    "admission.fixed.window": "programs that may be active at once; 0: no limit",
    "admission.capacity.watermark_high": "share of the pool up to which programs are let in",
    "admission.capacity.watermark_low": "demand, as a share of the pool, below which programs are let in",
    "admission.capacity.interval_s": "time between two checks",
    "retention.ttl.static_s": "fixed length of every pin; 0: chosen for each pin",
    "packing.by_tier.idleness_cycles": "how many of a program's last cycles its idleness covers",
    "retention.tiers.interval_s": "time between two checks",
    "retention.tiers.idleness_cycles": "how many of a program's last cycles its idleness covers",
    "retention.tiers.moves": "contexts of paused programs are labelled and moved; a fleet leaves that to its nodes",
    "retention.watermarks.interval_s": "time between two checks",
    "retention.watermarks.decay_base": "an acting program's weight in the demand is divided by this with each "
    "interval_s that it has acted; 1: it keeps its weight",
    "retention.watermarks.decay_by_second": "it is divided with each second instead, and in parts of one",
    "retention.watermarks.watermark_high": "share of the pool down to which programs are paused",
    "admission.aimd.waste": "how much the forecast demand may exceed the pool: this times the fourth power of (a "
    "turn's own share of the engine's time over the time to recompute a context), as a share of the demand; "
    "0: not at all",
    "admission.aimd.alpha": "programs added to the window in an interval with slack",
    "admission.aimd.beta": "factor by which an interval with overload cuts the window",
    "admission.aimd.window_initial": "the window at the start",
    "admission.aimd.window_min": "lower bound of the window",
    "admission.aimd.window_max": "upper bound of the window",
    "admission.aimd.kv_high": "share of the pool that the forecast may fill",
    "admission.aimd.used_only": "the window grows only while it is used; false: MARS as printed (ADR 0003)",
    "admission.aimd.one_cut": "the window is cut again only once the last cut has had its effect; false: MARS as "
    "printed (ADR 0003)",
    "admission.aimd.compute": "the forecast may fill kv_high twice while computing is idle and once when it is "
    "saturated, and may exceed that by less (ADR 0019)",
    "admission.aimd.slow_start": "the window doubles until its first cut, then grows by alpha (ADR 0003)",
    "admission.aimd.evidence": "W_cpu holds only while the host is overloaded; false: always (ADR 0003)",
    "admission.aimd.forecast": "newcomers are admitted by what all programs will come to need; false: W_kv counts "
    "them by what they ask for now (ADR 0005)",
    "admission.concur.alpha": "programs added to the window in an interval in which the cache is little used",
    "admission.concur.beta": "factor by which the window is cut in an interval in which the cache is full and "
    "missed",
    "admission.concur.use_low": "share of the pool held by running turns below which the window grows",
    "admission.concur.use_high": "the same share, at which the window may shrink",
    "admission.concur.hit_low": "cached share of prompts below which it does shrink then",
    "admission.concur.window_initial": "the window at the start",
    "admission.concur.window_min": "lower bound of the window",
    "admission.concur.window_max": "upper bound of the window",
    "packing.least_left.ageing": "exponent of a program's age, which counts against what it has left: the greater "
    "it is, the sooner a large program goes first",
    "packing.pressure_aware.aged": "among short sessions, waiting time counts against size",
    "packing.pressure_aware.returners_first": "programs that come back after lending their slot go before "
    "newcomers",
    "priority.mlfq.shares": "footprints up to these shares of the pool begin at levels 0, 1, ...",
    "priority.mlfq.quota_chunks": "prefill chunks' worth of tokens that level 0 serves a program per window; each "
    "lower level serves twice as much",
    "priority.mlfq.window_s": "length of the quotas' window",
    "priority.mlfq.promote_s": "a waiting call rises one level each time this passes",
    "priority.mlfq.promotions": "maximum levels that a call may rise",
    "memory.opportunistic.shrink": "a chunk shrinks before contexts that somebody waits for are evicted",
    "priority.mlfq.cold": "a call's footprint is what it has yet to take of the pool; false: its whole context",
    "memory.opportunistic.aligned": "contexts are evicted, and running turns retracted, by level and size; false: "
    "contexts by last use, running turns as the engine chooses",
    "packing.pressure_aware.long_share": "share of the pool at which a session counts as long",
    "priority.plas.quantum_chunks": "prefill chunks' worth of tokens that a program is served in class 0; each "
    "further class serves twice as much",
    "priority.plas.classes": "number of classes",
    "priority.plas.starve_s": "a call that has waited this long goes before all classes",
    "retention.least_waste.interval_s": "time between two looks at the contexts that are kept",
    "retention.least_waste.ttl_max_s": "the longest pin",
    "retention.least_waste.prefetch_s": _PREFETCH,
    "retention.lend.prefetch_s": _PREFETCH,
    "priority.ttl_first.pinned_first": "a call whose program's context is pinned goes before earlier programs",
    "placement.prefix.match": "share of a prompt that an engine must have seen to be given the turn for that",
    "placement.prefix.pile_turns": "turns have piled up where one engine has so many more than another, ...",
    "placement.prefix.pile_ratio": "... and this many times as many: the one with the fewest takes the turn",
    "placement.session.hard": "a program never leaves an engine that still has its context on the device, however "
    "crowded it is (nor, hard or not, one that has it in the host's memory)",
    "placement.session.turns_ahead": "turns for which an engine that is crowded is taken to stay so",
    "placement.session.passing_wait": "share of a wait for room now that counts for a turn that comes after a tool",
    "placement.session.link_tokens_per_s": "tokens' worth of KV that one engine sends another per second; 0: none "
    "(the simulator then uses its hardware's)",
    "memory.lru.keep_pins": "calls wait for pinned memory, as in Continuum; false: pins are dropped when a call "
    "needs the memory",
    "retention.ttl.cold_start": "Continuum's K: tool calls to see before their times are trusted",
    "retention.ttl.ttl_max_s": "the longest pin",
    "retention.ttl.learned": "pins last by what was seen; false: every pin lasts T_default",
    "retention.opportunistic.cold_start": "Continuum's K: tool calls to see before their times are trusted",
    "retention.opportunistic.ttl_max_s": "the longest pin",
    "retention.opportunistic.lend": "an active program that will be away for long leaves its room to others",
    "retention.opportunistic.kv_high": "KV use u at which holding memory costs its whole time",
}

UNITS = {"_s": "s", "_ms": "ms", "_tokens": "tokens", "_blocks": "blocks", "_ratio": "ratio"}
UNIT_OF = {
    "kv_token_s": "KV tokens x s",
    "program_kv_token_s": "KV tokens x s",
    "share": "ratio",
    "time_scale": "factor",
    "cpus": "CPUs",
    "persistence": "intervals",
    "alpha": "programs",
    "beta": "factor",
    "decay_base": "factor",
    "window": "programs",
    "window_initial": "programs",
    "window_min": "programs",
    "window_max": "programs",
    "cold_start": "tool calls",
    "ask_publisher_times": "requests",
    "end_below": "ratio",
    "cpu_slowdown_high": "ratio",
    "cpu_slowdown_low": "ratio",
    "cpu_tools_low": "ratio",
    "cpu_use_low": "ratio",
    "cpu_use_high": "ratio",
    "cpu_stall_high": "ratio",
    "cpu_stall_low": "ratio",
    "shares": "ratios",
    "quota_chunks": "chunks",
    "quantum_chunks": "chunks",
    "classes": "classes",
    "link_tokens_per_s": "tokens/s",
    "turns_ahead": "turns",
    "passing_wait": "ratio",
    "match": "ratio",
    "pile_turns": "turns",
    "pile_ratio": "factor",
    "promotions": "levels",
    "kv_high": "ratio",
    "watermark_high": "ratio",
    "watermark_low": "ratio",
    "kv_low": "ratio",
    "kv_slack": "ratio",
    "kv_cold_return": "ratio",
    "long_share": "ratio",
}
