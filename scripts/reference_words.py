"""What ``generate_reference.py`` cannot read from the code: who publishes, who obeys, and the pages' own words."""

PUBLISHERS = {
    "ProgramArrived": "tool runtime; gate (for a child)",
    "TurnQueued": "gate",
    "TurnHinted": "gate",
    "TurnAbandoned": "gate",
    "TurnsRefused": "gate",
    "TurnSubmitted": "engine",
    "FirstToken": "engine",
    "TurnPrefilled": "engine (prefill)",
    "TurnDecoded": "engine (decode)",
    "TurnEnded": "engine; the daemon itself, of the two above",
    "ReplyRead": "gate",
    "EnvironmentWanted": "tool runtime",
    "SandboxSampled": "tool runtime",
    "ToolEnqueued": "tool runtime",
    "ToolStarted": "tool runtime",
    "ToolEnded": "tool runtime",
    "ProgramEnded": "tool runtime; gate (for a program of one turn)",
    "PoolSampled": "engine",
    "ContextMoved": "engine (SGLang with HiCache)",
    "PinReclaimed": "engine",
    "CacheFlushed": "engine, gate",
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
    "Freeze": "the agent that registered it",
    "Thaw": "the agent that registered it",
}

HINTS_PAGE = (
    "What a client may ask for beside an answer, in the words that clients use already. Each is a wish: the",
    "policies decide, within the bounds that the operator sets in",
    "[`[control.hints]`](configuration.md#controlhints), and `penstock explain PROGRAM` names the wish wherever",
    "one has decided. A wish holds for the program until its next request says otherwise. Of several spellings of",
    "one wish the first in the table counts. A gate in the engine and one before it read the same. Nothing is",
    "taken out of the request: an engine may obey it, too.",
)
RECEIPTS = (
    "`kv_hints` in the body (vLLM's and SGLang's envelope; also `kv_transfer_params.kv_hint`) says what is to",
    "become of the program's context. Each action is answered in the reply's header `x-penstock-kv-hints`, a JSON",
    "object with the `message_id` and, for each of the first 16 `actions`, its `action_id`, the `outcome`",
    "(`accepted`, `clipped` or `rejected`), the `reason`, and of a pin the `ttl_seconds` that are granted.",
    "Accepted means that it is within the bounds and goes to the daemon. What the engine made of it, and what it",
    "was worth in tokens and seconds, is in `penstock explain`: an engine gives a pin up for a turn that needs the",
    "room, and a program whose slot is taken back has none. A payload may name its own `session_id`, and no other.",
)
DEADLINES_WORDS = (
    "A run that has not begun is refused at once where it would wait for longer than its client does, and goes",
    "first once that time nears. What has begun is never refused for waiting. The shortest of these counts:",
)

CLIENTS_PAGE = (
    "Sessions come first, then hints, each in this order, the headers of all before the fields of all.",
    "[What an id is believed](subjects-and-files.md#ids-and-contexts) depends on what it stands for.",
    "",
    "Codex' sub-agents are children within the session that `session-id` names. With `x-claude-code-agent-id` a",
    "session's request is its sub-agent's, the program `SESSION/AGENT`, a child of the session or of",
    "`x-claude-code-parent-agent-id`; Claude Code's field `metadata.user_id` contains its session, too. OpenCode",
    "sends `x-session-id` to most servers. mini-swe-agent, openai-agents and LangGraph send nothing:",
    "[their adapters](../how-to/attach-an-agent.md) add `x-penstock-program-id`.",
)
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
    "[`controlplane/core/model/lifecycle.py`](../../controlplane/core/model/lifecycle.py).",
    "",
    "This is one of two dimensions. The other, whether the program reasons (a turn is open) or acts (none is), is",
    "counted and not in the table: turns may overlap, and a paused program's tool may still run. Only root",
    "programs hold slots; a child follows its root.",
)

TIMELINE_PAGE = (
    "The page asks the daemon for it, and so may whoever reaches the page: `GET /program?id=NAME`, the name",
    "percent-encoded, at [`http.listen`](configuration.md#http). The answer is 404, with the reason as `error`,",
    "where nothing is kept of that program. It has an `ETag`; a request with `If-None-Match` gets 304 until",
    "something happens. Of one program the latest {most_told} entries are told, of a tree {most_relatives}",
    "programs. The daemon keeps {most_entries:,} entries of all programs together in memory, and nothing of them",
    "across a restart.",
)
