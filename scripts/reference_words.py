"""What ``generate_reference.py`` cannot read from the code: who publishes, who obeys, and the pages' own words."""

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
    "OperatorOrders": "daemon (its control API)",
}
OBEYED_BY = {
    "SetWindow": "gate",
    "Admit": "gate",
    "Adopt": "gate",
    "Pause": "gate",
    "Retain": "engine",
    "Release": "engine",
    "Demote": "engine (SGLang with HiCache)",
    "Prefetch": "engine (SGLang with HiCache)",
    "Discard": "engine",
    "Label": "engine",
    "StateRequest": "the publisher named",
    "StartTool": "the agent that asked",
    "PrepareEnvironment": "the agent that asked",
    "CancelEnvironment": "the agent that asked",
}

CONTROL_PAGE = (
    "What an operator, or a program of theirs, may ask of a daemon: gRPC service `penstock.v1.Control`, from",
    "[`proto/penstock/v1/control.proto`](../../proto/penstock/v1/control.proto). The commands `penstock top`,",
    "`status`, `programs`, `queue`, `decisions`, `hold`, `release`, `drain`, `set-preset` and `reload` use it.",
    "",
    "It listens on a Unix socket in the state directory that only the daemon's user may open, or where `[api]`",
    "says ([configuration](configuration.md#api)): a host that others reach needs a certificate, and with",
    "`client_ca` every client needs one too. Health (`grpc.health.v1`) and reflection are served:",
    "",
    "    grpcurl -plaintext -unix ~/.local/state/penstock/local.control.sock penstock.v1.Control/GetStatus",
)

METRICS_PAGE = (
    "What `GET /metrics` of a daemon tells Prometheus ([how to](../how-to/watch-a-node.md)). Over OTLP the same",
    "instruments have dots where these have underscores, and no ending for unit or `total`. Times are seconds of",
    "the node's clock.",
)

STATES_PAGE = (
    "Where a program stands with the admission window. Drawn from the one transition table,",
    "[`controlplane/core/lifecycle.py`](../../controlplane/core/lifecycle.py).",
    "",
    "This is one of two dimensions. The other, whether the program reasons (a turn is open) or acts (none is), is",
    "counted and not tabled: turns may overlap, and a paused program's tool may still run. Only root programs hold",
    "slots; a child follows its root.",
)

ANY_MIX_PAGE = """# Any mix of loads

{edit}
Simulated: agents alike and mixed, tools that burn CPU, bursts, a population that changes; pools that hold two or
three programs and ten; 0.4, 0.8 and 1.4 times the rate that saturates them; telemetry none and full; three seeds
(`examples/sweeps/any-mix-small.toml`). Why `penstock` loses where it does is in
[the presets compared](../explanation/presets-compared.md#any-mix). The *clairvoyant* knows the future: what a
preset takes more than it is the preset's *regret*.

<!-- run -->
```bash
penstock sweep-report bench/results/any-mix-small.csv --regret --markdown
```

{sheets}
"""

PRESETS_PAGE = """# The presets side by side

{edit}
Simulated: what was run, and where `mars` wins and loses, is in
[the presets compared](../explanation/presets-compared.md). ± is a 95% interval over seeds by Student's t. Goodput
counts programs that end within 1, 2 and 3 times their time alone on the engine. *Recompute* and *caching* are the
shares of the pool's space-time that went into computing lost contexts again and into holding contexts of acting
programs (ThunderAgent's ledger). Times in seconds; the lowest mean JCT of each column is bold.

<!-- run -->
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
