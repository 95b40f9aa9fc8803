#!/bin/bash
# The loop of docs/retraining.md, end to end: a policy meets links that it was not made for, is recorded, retrained, judged,
# tried on half of the flows, and promoted; a worse one is tried too. As root, on a machine that does nothing else, after
# `cargo xtask build`; some 30 minutes.
#
#   docs/retraining/loop.sh DIRECTORY
set -euo pipefail

out=${1:?usage: docs/retraining/loop.sh DIRECTORY}
root=$(cd "$(dirname "$0")/../.." && pwd)
export PATH=$root/target/release:$PATH
mkdir "$out"
cd "$out"

step() { printf '\n### %s\n\n' "$*"; }
# Flows over the links with jitter: 20 s each, three links, $1 flows a link, of the schemes $2.
flows() { cc-trainer evaluate --scenarios jitter --seconds 20 --jobs 6 --runs "$1" --schemes "$2" "${@:3}"; }
judge() { cc-trainer ope --from "$1" --policy "$2" "${@:3}" || test $? = 3 -o $? = 4; }
# Tries a policy on half of the flows of the running agent, and waits for what the guard rails say.
try() {
  cc-agent reload "$1/policy.onnx" --canary 50 --name field
  flows 20 field --seed "$2" --out "$1-tried" > /dev/null
  cc-agent status --name field
}

main() {
  step "A policy that has never met jitter"
  cc-trainer train --config "$root/cc-trainer/training/calibrated.toml" --out first

  step "What it is worth there"
  flows 3 first=first/policy.onnx,cubic,bbr --out before

  step "It is recorded on two days"
  for day in 1 2; do
    flows 24 first=first/policy.onnx --serving softmax:1 --seed "$day" --record "day$day" --out "recorded$day"
  done
  cc-trainer dataset day1/first --out timeline

  step "Retrained on the first day's recording"
  cc-trainer train --from day1/first --init first/policy.onnx --steps 400000 --out second

  step "Judged by the second day's"
  judge day2/first second/policy.onnx
  step "And the first policy, drawing more sharply"
  judge day2/first first/policy.onnx --serving softmax:0.5

  step "On half of the flows"
  cc-agent run --plain --name field --policy first/policy.onnx > agent.log 2>&1 &
  agent=$!
  trap 'kill $agent 2> /dev/null || true; wait' EXIT
  until cc-agent status --name field > /dev/null 2>&1; do sleep 0.1; done
  try second 3
  cc-agent promote --name field

  step "A worse one, on half of the flows of what is served now"
  # The first one's configuration, but that neither delay nor loss costs anything.
  sed 's/^delay = .*/delay = 0.0/; s/^loss = .*/loss = 0.0/' "$root/cc-trainer/training/calibrated.toml" > careless.toml
  cc-trainer train --config careless.toml --steps 300000 --out careless
  judge day2/first careless/policy.onnx
  try careless 4
  kill $agent
  wait $agent || true
  trap - EXIT

  step "What came of it: fresh runs, and what the agent says that they earned"
  flows 5 first=first/policy.onnx,second=second/policy.onnx,careless=careless/policy.onnx,cubic,bbr --seed 5 --record fresh \
    --out after
  flows 5 first-sharp=first/policy.onnx --serving softmax:0.5 --seed 5 --record fresh --out after-sharp
  for policy in first second careless; do
    printf '%s' "$policy"; judge "fresh/$policy" "$policy/policy.onnx" | grep -A1 '^reward' | tail -1
  done
  printf 'first-sharp'; judge fresh/first-sharp first/policy.onnx --serving softmax:0.5 | grep -A1 '^reward' | tail -1
}

main
