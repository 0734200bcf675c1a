#!/usr/bin/env bash
# The whole loop, part by part, on this machine: daemon, engine double, a small workload, and the log's replay.
#
#   examples/loop.sh [PRESET] [PROGRAMS]      PENSTOCK=.venv/bin/penstock by default
set -euo pipefail

penstock=${PENSTOCK:-.venv/bin/penstock}
preset=${1:-penstock}
programs=${2:-10}
scale=50 # times faster than real time, for every part
folder=$(mktemp -d)
parts=()

stop() {
  for pid in "${parts[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait "${parts[@]}" 2>/dev/null || true
  rm -rf "$folder"
}
trap stop EXIT

until_it_says() { # FILE TEXT
  for _ in $(seq 200); do
    if grep -q "$2" "$1" 2>/dev/null; then return; fi
    sleep 0.05
  done
  cat "$1" >&2
  exit 1
}

common=(--state-dir "$folder" --node loop --time-scale "$scale")

"$penstock" up "${common[@]}" --preset "$preset" --record "$folder/run.jsonl" 2>"$folder/daemon.log" &
parts+=($!)
until_it_says "$folder/daemon.log" '"event": "up"'

"$penstock" engine-double "${common[@]}" --port 0 --pool-tokens 40000 --tokens-per-word 64 2>"$folder/double.log" &
parts+=($!)
until_it_says "$folder/double.log" "listens on"
url=$(sed -n 's/.*listens on //p' "$folder/double.log")

"$penstock" replay synthetic:swe-bench --programs "$programs" --arrival poisson:0.3 --url "$url" \
  --tokens-per-word 64 "${common[@]}" --label "$preset"

kill "${parts[@]}"
wait "${parts[@]}" || true
"$penstock" log replay "$folder/run.jsonl"
