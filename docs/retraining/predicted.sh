#!/bin/bash
# Predicted against fresh: records a policy, estimates nine candidates from the recording, and runs
# each of them, over the links with jitter. The table is in docs/retraining.md.
#
#   docs/retraining/predicted.sh DIRECTORY prepare   trains the policies in the simulator
#   docs/retraining/predicted.sh DIRECTORY sim       then records, runs and compares there
#   docs/retraining/predicted.sh DIRECTORY kernel    or under the running kernel
#
# Build it before: cargo build --release --bins, and cargo build --release --package cc-trainer
# --example predicted_and_fresh. The kernel needs root, an otherwise idle machine, and 11 minutes.
set -euo pipefail

out=${1:?usage: docs/retraining/predicted.sh DIRECTORY prepare|sim|kernel}
what=${2:?usage: docs/retraining/predicted.sh DIRECTORY prepare|sim|kernel}
root=$(cd "$(dirname "$0")/../.." && pwd)
export PATH=$root/target/release:$root/target/release/examples:$PATH
mkdir -p "$out"
cd "$out"

candidates=(sharper sharp blunt blunter greedy few many other careless)
files=("${candidates[@]/#/policies/}")
files=("${files[@]/%/.onnx}")

prepare() {
  mkdir policies
  cc-trainer train --config "$root/cc-trainer/training/calibrated.toml" --steps 400000 --out first
  predicted_and_fresh serve first/policy.onnx softmax:1 policies/recorded.onnx
  serve() { predicted_and_fresh serve "$1/policy.onnx" "$2" "policies/$3.onnx"; }
  serve first softmax:0.25 sharper
  serve first softmax:0.5 sharp
  serve first softmax:2 blunt
  serve first softmax:8 blunter
  serve first greedy greedy
  # Retrained from runs that are used for nothing else.
  predicted_and_fresh record taught --policy policies/recorded.onnx --seed 100
  retrain() { cc-trainer train --from taught --init policies/recorded.onnx --out "$@"; }
  retrain few --steps 60000
  retrain many --steps 600000
  retrain other --steps 300000 --seed 2
  # Delay and loss cost nothing.
  sed 's/^delay = .*/delay = 0.0/; s/^loss = .*/loss = 0.0/' "$root/cc-trainer/training/calibrated.toml" > careless.toml
  cc-trainer train --config careless.toml --steps 200000 --out careless
  for policy in few many other careless; do serve "$policy" softmax:1 "$policy"; done
}

sim() {
  # Few flows, as a day may have them, and many.
  predicted_and_fresh record sim/day/recorded --policy policies/recorded.onnx --seed 1
  predicted_and_fresh record sim/days/recorded --policy policies/recorded.onnx --seed 4 --runs 200
  for policy in recorded "${candidates[@]}"; do
    predicted_and_fresh record "sim/fresh/$policy" --policy "policies/$policy.onnx" --seed 2 --runs 20
  done
  predicted_and_fresh take-over sim/switched.json --recorded-policy policies/recorded.onnx --seed 3 --runs 100 "${files[@]}"
  for from in day days; do
    predicted_and_fresh compare --recorded "sim/$from/recorded" --fresh sim/fresh --switched sim/switched.json \
      --json "sim/$from.json" "${files[@]}"
  done
}

kernel() {
  run() { cc-trainer evaluate --scenarios jitter --seconds 20 --jobs 6 "$@" > /dev/null; }
  run --schemes recorded=policies/recorded.onnx --runs 22 --seed 1 --record kernel/day --out kernel/day-runs
  schemes=recorded=policies/recorded.onnx
  for policy in "${candidates[@]}"; do schemes+=,$policy=policies/$policy.onnx; done
  run --schemes "$schemes" --runs 4 --seed 2 --record kernel/fresh --out kernel/fresh-runs
  predicted_and_fresh compare --recorded kernel/day/recorded --fresh kernel/fresh --json kernel/compared.json "${files[@]}"
}

case $what in
  prepare | sim | kernel) "$what" ;;
  *) echo "$what: expected prepare, sim or kernel" >&2; exit 1 ;;
esac
