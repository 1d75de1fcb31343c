#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The demo: trains a model whose weights and optimizer state do not fit into the memory it is given, and says with
# numbers whether that worked. Run it as ./dev demo, which builds the program first. Writes to scratch/demo and
# runs/demo only; each run starts anew.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

headrace=${HEADRACE:-build/release/bin/headrace}
config=demo/demo.json
run=runs/demo
work=scratch/demo
largest_loss=2.3   # nats per byte, on text that was not trained on
largest_share=0.9  # of the bytes of weights and optimizer state that memory.host may be

say() { printf '\n== %s\n' "$*"; }
die() { printf 'demo: %s\n' "$*" >&2; exit 1; }

[ $# -eq 0 ] || die "takes no arguments; its job is $config"
[ -x "$headrace" ] || die "there is no $headrace; ./dev demo builds it"

# The text: one verse per line, without the references ("Ge1:1 ") that stand before each.
make_text() {
  command -v bible > /dev/null || die "the program \"bible\" is missing: apt-get install bible-kjv bible-kjv-text"
  bible -f gen1:1-rev22:21 < /dev/null | sed -E 's/^[1-3]?[A-Za-z]+[0-9]+:[0-9]+ //' > "$1.new"
  [ "$(wc -l < "$1.new")" -eq 31102 ] || die "the text has $(wc -l < "$1.new") verses instead of 31102"
  mv "$1.new" "$1"
}

# The state of an earlier demo; a run that is going on now is in use, and prune says so.
remove_earlier() {
  if [ -e "$run/run.json" ]; then "$headrace" checkpoint prune "$run" --yes; fi
  rm -rf "$run"
}

# check RESULT PLAN: compares what happened with what was promised; fails unless both bounds hold.
check() {
  python3 - "$1" "$2" "$largest_loss" "$largest_share" <<'PYTHON'
import json, sys
result, plan = (json.load(open(path)) for path in sys.argv[1:3])
largest_loss, largest_share = map(float, sys.argv[3:5])
mib = 1 << 20
state, budget = plan["state_bytes"], plan["memory"]["host"]["budget_bytes"]
peak, loss = result["peak_rss_bytes"], result["val_loss"]
print(f"state    {state / mib:.1f} MiB of weights and optimizer, all of it on disk")
print(f"memory   {budget / mib:.1f} MiB allowed = {budget / state:.2f} of the state (at most {largest_share});"
      f" {peak / mib:.1f} MiB used at the peak")
print(f"time     {result['seconds']:.0f} s for {result['steps_taken']} steps,"
      f" {result['tokens_per_second']:.0f} bytes of text per second")
print(f"loss     {loss:.4f} nats per byte on text not trained on (at most {largest_loss})")
faults = [name for name, holds in (("loss", loss <= largest_loss), ("memory.host", budget <= largest_share * state),
                                   ("peak memory", peak <= 1.05 * budget)) if not holds]
sys.exit("demo: out of bounds: " + ", ".join(faults) if faults else 0)
PYTHON
}

mkdir -p "$work"
say "the text: the King James Bible, in $work/kjv.txt"
make_text "$work/kjv.txt"
printf '%s bytes; the last 5 %% of them are for validation\n' "$(wc -c < "$work/kjv.txt")"
remove_earlier

say "the plan: headrace plan $config"
"$headrace" plan "$config"
"$headrace" plan "$config" --json > "$work/plan.json"

say "training: headrace train $config"
"$headrace" train "$config" --json > "$work/result.json"

say "what it has learned: headrace generate $run"
"$headrace" generate "$run" --prompt "And the LORD said unto " --tokens 200 --temperature 0.8 --seed 1

say "the result ($run/metrics.jsonl has a row for each step)"
check "$work/result.json" "$work/plan.json"
