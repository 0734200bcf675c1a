"""What ``generate_reference.py`` cannot read from the code: who publishes, who obeys, and the pages' own words."""

PUBLISHERS = {
    "ProgramArrived": "tool runtime; gate (for a child)",
    "TurnQueued": "gate",
    "TurnAbandoned": "gate",
    "TurnsRefused": "gate",
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
    "ContextMoved": "engine (SGLang with HiCache)",
    "PinReclaimed": "engine",
    "HostSampled": "daemon (its host probe)",
    "CommandApplied": "engine, gate",
    "CommandRejected": "engine, gate",
    "PublisherState": "any publisher, when asked",
    "OperatorOrders": "daemon (its control API)",
    "EnginesListed": "fleet daemon (its roster)",
}
OBEYED_BY = {
    "SetWindow": "gate",
    "Admit": "gate",
    "Adopt": "gate",
    "Refuse": "gate",
    "Place": "gate, engine",
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
    "This is what an operator, or an operator's program, may ask of a daemon: the gRPC service",
    "`penstock.v1.Control` of [`proto/penstock/v1/control.proto`](../../proto/penstock/v1/control.proto). The",
    "commands `penstock top`, `status`, `programs`, `queue`, `decisions`, `hold`, `release`, `drain`,",
    "`set-preset`, `promote` and `reload` use it.",
    "",
    "The daemon serves it on a Unix socket in the state directory, which only the daemon's user may open, or at",
    "the address in `[api]` ([configuration](configuration.md#api)). A host that others can reach needs a",
    "certificate, and with `client_ca` every client needs one, too. The commands take the address from `--api`",
    "or `PENSTOCK_API`. They use TLS where `PENSTOCK_API_CA` names the file of the authority that signed the",
    "daemon's certificate; `PENSTOCK_API_CERTIFICATE` and `PENSTOCK_API_PRIVATE_KEY` name those of their own. The",
    "daemon also serves health (`grpc.health.v1`) and reflection:",
    "",
    "    grpcurl -plaintext -unix ~/.local/state/penstock/local.control.sock penstock.v1.Control/GetStatus",
)

METRICS_PAGE = (
    "Prometheus reads these from a daemon's `GET /metrics` ([how to](../how-to/watch-a-node.md)). Over OTLP the",
    "same instruments have dots instead of underscores, and no suffix for the unit or `total`. Times are in",
    "seconds of the node's clock.",
)

STATES_PAGE = (
    "These are a program's states with respect to the admission window, drawn from the one transition table,",
    "[`controlplane/core/lifecycle.py`](../../controlplane/core/lifecycle.py).",
    "",
    "This is one of two dimensions. The other, whether the program reasons (a turn is open) or acts (none is), is",
    "counted and not in the table: turns may overlap, and a paused program's tool may still run. Only root",
    "programs hold slots; a child follows its root.",
)

ANY_MIX_PAGE = """# Any mix of loads

{edit}
These runs are simulated. They cover agents alike and mixed, tools that burn CPU, bursts and a population that
changes; pools that hold two or three programs, and ten; 0.4, 0.8 and 1.4 times the rate that saturates them;
telemetry none and full; and three seeds (`examples/sweeps/any-mix-small.toml`). [The presets
compared](../explanation/presets-compared.md#any-mix) explains why `penstock` loses where it does. The *clairvoyant*
knows the future; a preset's *regret* is how much longer it takes than that.

<!-- run -->
```bash
penstock sweep-report bench/results/any-mix-small.csv --regret --markdown
```

{sheets}
"""

ANY_MIX_SAMPLE_PAGE = """# Any mix of loads: a sample of the whole grid

{edit}
These runs are simulated. The whole grid (`examples/sweeps/any-mix.toml`) has fifteen workloads, pools that hold two
or three programs, ten and fifty, six loads from 0.3 to twice the rate that saturates them, three telemetries and
five seeds. It takes nine hours on two cores; this is a sample of it. [The presets
compared](../explanation/presets-compared.md#any-mix) explains why `penstock` loses where it does, and
[any mix of loads](any-mix.md) has a smaller grid, which was run whole.

<!-- run -->
```bash
penstock sweep-report bench/results/any-mix-sample.csv --regret --markdown
```

It prints this, and a table of each case.

{sheets}
"""

PRESETS_PAGE = """# The presets side by side

{edit}
These runs are simulated. [The presets compared](../explanation/presets-compared.md) says what was run, and where
`mars` wins and loses. ± is a 95% interval over seeds by Student's t. Goodput counts programs that end within 1, 2
and 3 times their time alone on the engine. *Recompute* and *caching* are the shares of the pool's space-time spent
on recomputing lost contexts and on holding contexts of acting programs (ThunderAgent's ledger). Times are in
seconds; the lowest mean JCT of each column is bold.

<!-- run -->
```bash
penstock sweep-report bench/results/all-presets.csv --markdown
```

{tables}"""

PROFILES_PAGE = """# Hardware profiles

{edit}
A profile says how long the simulator's and the engine double's steps take, and how large the KV pool is. Choose one
with `--profile NAME`, or give the path of your own file. Built-in profiles describe Llama-3.1-8B in bf16 on one
device, except `b200-llama31-70b`.

{table}

The figures come from these sources:

{sources}

`measured` profiles repeat a calibration of a running engine. `analytic` ones are a roofline: nobody has measured
them here, and their efficiencies are assumptions that the file states. Use them to compare policies, not to plan
capacity.

## File format

A profile is JSON with `kind` (`measured`, `fitted` or `analytic`), `name`, `source`, and:

- `measured`: `prefill_s` (prompt tokens to seconds to the first token, at least two lengths), `decode_s`
  (`"batch x context"` to seconds per step, which the coefficients were fitted to), `step_overhead_us`,
  `decode_base_us`, `decode_sequence_us`, `decode_context_ns`, `kv_pool_tokens`, `max_context_tokens`.
- `fitted`, what [`penstock calibrate`](cli.md) writes: coefficients instead of the prefill curve. These are
  `prefill_token_us`, `attention_ps` (per pair of tokens), `attends_anew` (true: a chunk's attention goes through
  the whole sequence again, as SGLang's `torch_native` does on CPUs), `turn_overhead_us` (per turn, before the
  scheduler has it: HTTP server, chat template, tokenizer) and `results_late` (true: a step's results are known when
  the next one is done, as with SGLang's overlap scheduler on a CPU). The measured `prefill_s` and `decode_s` stand
  beside them.
- `analytic`: `flops_per_s`, `memory_bytes_per_s`, `memory_bytes`, `linear_efficiency_ratio`,
  `attention_efficiency_ratio`, `bandwidth_efficiency_ratio`, `memory_use_ratio`, `step_overhead_us`, `sequence_us`;
  and for the model `parameters`, `layers`, `hidden`, `kv_heads`, `head_dim`, `bytes_per_value`,
  `max_context_tokens` (default: Llama-3.1-8B).

`measured` and `fitted` profiles may give `kv_bytes_per_token`, which determines how long transfers between memory
tiers take. A missing, unknown or non-positive field is refused with the file's path and the field's name. A prefill
chunk costs the difference of two points of the cumulative prefill curve, plus the overhead of a step (and with
`attends_anew` the square of its whole length times `attention_ps`); a decode step costs `base + sequence * batch +
context * tokens`. See [the engine model](../explanation/the-engine-model.md).
"""

TIMELINE_PAGE = (
    "The page asks the daemon for it, and so may whoever reaches the page: `GET /program?id=NAME`, the name",
    "percent-encoded, at [`http.listen`](configuration.md#http). The answer is 404, with the reason as `error`,",
    "where nothing is kept of that program. It has an `ETag`; a request with `If-None-Match` gets 304 until",
    "something happens. Of one program the latest {most_told} entries are told, of a tree {most_relatives}",
    "programs. The daemon keeps {most_entries:,} entries of all programs together in memory, and nothing of them",
    "across a restart.",
)
