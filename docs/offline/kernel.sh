#!/bin/bash
# Learns a policy from bbr, cubic and reno as they run under this host's kernel, on emulated links,
# and judges it beside them on other links of the same family. Run it as root, on an otherwise idle
# machine, after `cargo xtask build`. It takes half an hour to an hour.
#
#   docs/offline/kernel.sh DIRECTORY INTERFACE.onnx
#
# INTERFACE.onnx is a policy that `cc-trainer offline` learned from the simulator's pool: its file
# tells the observer how long windows are and how long the smallest RTT is remembered. It is not
# run while the teachers are recorded; at the end it is judged too.
set -euo pipefail

out=${1:?usage: docs/offline/kernel.sh DIRECTORY INTERFACE.onnx}
interface=$(realpath "${2:?usage: docs/offline/kernel.sh DIRECTORY INTERFACE.onnx}")
root=$(cd "$(dirname "$0")/../.." && pwd)
training=$root/cc-trainer/training
export PATH=$root/target/release:$PATH
mkdir "$out"
cd "$out"

teachers=bbr,cubic,reno

# Prints a heading.
step() { printf '\n### %s\n\n' "$*"; }

step "Draw the links"
cc-trainer pool record --config "$training/pool-kernel.toml" --links-only --out pool

step "Observe the teachers on the training links"
cc-agent observe --record recordings --congestion-control "$teachers" --policy "$interface" \
  > observe.log 2>&1 &
observer=$!
trap 'kill -INT $observer 2> /dev/null || true; wait' EXIT
until grep -q 'observing up to' observe.log; do kill -0 $observer; sleep 0.1; done
cc-trainer evaluate --schemes "$teachers" --scenarios pool/training.toml --seconds 30 --runs 1 \
  --out teachers > teachers.log
kill -INT $observer
wait $observer || true
trap - EXIT
tail -n 3 observe.log

step "Learn from what was observed"
cc-trainer offline --config "$training/offline.toml" --from recordings --out learned

step "Judge on links of the test part"
cc-trainer evaluate --schemes "kernel=learned/policy.onnx,simulated=$interface,$teachers" \
  --scenarios pool/test.toml --seconds 30 --runs 2 --out judged
cc-trainer pool judge judged/summary.json
