#!/bin/bash
# Runs the loop of docs/retraining.md from beginning to end: a policy serves links that it was not
# trained for, and is recorded; a second policy is retrained from the recording, evaluated
# off-policy, tried as a canary on half of the flows, and promoted; then a worse policy is tried in
# the same way. Run it as root, on an otherwise idle machine, after `cargo xtask build`. It takes
# about 30 minutes.
#
#   docs/retraining/loop.sh DIRECTORY
set -euo pipefail

out=${1:?usage: docs/retraining/loop.sh DIRECTORY}
root=$(cd "$(dirname "$0")/../.." && pwd)
export PATH=$root/target/release:$PATH
mkdir "$out"
cd "$out"

# Prints a heading.
step() { printf '\n### %s\n\n' "$*"; }
# Runs flows of 20 s over the three links with jitter: $1 per link and scheme in $2.
flows() { cc-trainer evaluate --scenarios jitter --seconds 20 --jobs 6 --runs "$1" --schemes "$2" "${@:3}"; }
# Estimates the policy $2 from the recordings in $1; "worse" and "no conclusion" are no failures.
judge() { cc-trainer ope --from "$1" --policy "$2" "${@:3}" || test $? = 3 -o $? = 4; }
# Runs the policy $1 as a canary on half of the running agent's flows, in blocks of 2 s, and prints
# both arms and the conclusion.
try() {
  cc-agent reload "$1/policy.onnx" --canary 50 --name field
  flows 20 field --seed "$2" --out "$1-tried" > /dev/null
  cc-agent status --name field
  cc-agent conclude --name field || true
}

main() {
  step "Train a policy on links without jitter"
  cc-trainer train --config "$root/cc-trainer/training/calibrated.toml" --out first

  step "Evaluate it on links with jitter"
  flows 3 first=first/policy.onnx,cubic,bbr --out before

  step "Record it on two days"
  for day in 1 2; do
    flows 24 first=first/policy.onnx --serving softmax:1 --seed "$day" --record "day$day" --out "recorded$day"
  done
  cc-trainer dataset day1/first --out timeline

  step "Retrain on the first day's recording"
  cc-trainer train --from day1/first --init first/policy.onnx --steps 400000 --out second

  step "Estimate the second policy from the second day's recording"
  judge day2/first second/policy.onnx
  step "Estimate the first policy at temperature 0.5"
  judge day2/first first/policy.onnx --serving softmax:0.5

  step "Try the second policy on half of the flows"
  cc-agent run --plain --name field --policy first/policy.onnx --canary-block 2 > agent.log 2>&1 &
  agent=$!
  trap 'kill $agent 2> /dev/null || true; wait' EXIT
  until cc-agent status --name field > /dev/null 2>&1; do sleep 0.1; done
  try second 3
  cc-agent promote --name field

  step "Try a worse policy on half of the flows"
  # The first policy's configuration with delay and loss weights of 0.
  sed 's/^delay = .*/delay = 0.0/; s/^loss = .*/loss = 0.0/' "$root/cc-trainer/training/calibrated.toml" > careless.toml
  cc-trainer train --config careless.toml --steps 300000 --out careless
  judge day2/first careless/policy.onnx
  try careless 4
  kill $agent
  wait $agent || true
  trap - EXIT

  step "Compare all policies in fresh runs, and their recorded rewards"
  flows 5 first=first/policy.onnx,second=second/policy.onnx,careless=careless/policy.onnx,cubic,bbr --seed 5 --record fresh \
    --out after
  flows 5 first-sharp=first/policy.onnx --serving softmax:0.5 --seed 5 --record fresh --out after-sharp
  for policy in first second careless; do
    printf '%s' "$policy"; judge "fresh/$policy" "$policy/policy.onnx" | grep -A1 '^reward' | tail -1
  done
  printf 'first-sharp'; judge fresh/first-sharp first/policy.onnx --serving softmax:0.5 | grep -A1 '^reward' | tail -1
}

main
