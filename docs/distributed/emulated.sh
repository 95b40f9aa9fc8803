#!/bin/bash
# Compares how many environment steps a policy takes to learn from emulated links, which run by the
# clock, without replay and with it. Run it as root on an otherwise idle machine. Build it before:
#
#   cargo build --release --bins
#   docs/distributed/emulated.sh DIRECTORY [SEEDS [STEPS]]
#
# Each run is a directory in DIRECTORY, and one that has ended is not repeated: started again, the
# script goes on where it was. Without further arguments it makes 3 seeds of 8,000 steps; at 20
# steps a second on each of eight links, a run takes a minute.
set -euo pipefail

out=${1:?usage: docs/distributed/emulated.sh DIRECTORY [SEEDS [STEPS]]}
seeds=${2:-3}
steps=${3:-8000}
root=$(cd "$(dirname "$0")/../.." && pwd)
export PATH=$root/target/release:$PATH
mkdir -p "$out"
cd "$out"

port=17556
worker=

end() {
  if [ -n "$worker" ]; then kill -INT "$worker" 2> /dev/null || true; wait "$worker" || true; fi
  worker=
}
trap end EXIT

# configure NAME BATCH [TABLE]: the same run but for the batch and its replay.
configure() {
  cat > "$1.toml" << END
serving = "softmax"
[environment]
kind = "network"
episode_s = 5
[environment.policy]
window_ms = 50
history = 5
actions = "0,/2,/1.25,*1.05,*1.25,*2"
[environment.objective]
kind = "power"
throughput = 2.0
loss = 10.0
scale = 0.1
[[environment.links]]
random = { rate_mbps = [4, 10], delay_ms = [10, 30], queue_bdp = [1, 3] }
[model]
hidden = [64]
activation = "tanh"
lstm = 0
[learner]
batch = $2
unroll = 20
discount = 0.95
learning_rate = 2e-3
epsilon = 1e-4
entropy_cost = 0.01
$3
END
}

# run NAME SEED: one run, and a line with its returns at each tenth of its steps.
run() {
  local name=$1-$2
  if [ ! -s "$name.end" ]; then
    rm -rf "$name"
    cc-trainer act --learner "grpc://127.0.0.1:$port" --on kernel --actors 8 2> "$name.worker" &
    worker=$!
    cc-trainer train --config "$1.toml" --seed "$2" --steps "$steps" --actors 0 \
      --listen "127.0.0.1:$port" --max-lag 1000 --out "$name" > "$name.part" 2> "$name.log"
    end
    mv "$name.part" "$name.end"
  fi
  echo "$name: $(head -n 1 "$name.end")"
}

configure none 8 ""
configure replay 32 "[learner.replay]
ratio = 3.0
capacity = 256"
echo "# Processors: $(nproc), $(uname -r), $(date -u +%F)"
for ((seed = 1; seed <= seeds; seed++)); do
  for name in none replay; do run "$name" "$seed"; done
done
