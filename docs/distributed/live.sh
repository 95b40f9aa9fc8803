#!/bin/bash
# Learns a policy further from the flows of a live agent, which serves it meanwhile, and the same
# with a learning rate of nearly 0, by which nothing changes. Both policies and the one that they
# began with are then compared on the same links. Run it as root on an otherwise idle machine. Build
# it before:
#
#   cargo build --release --bins
#   docs/distributed/live.sh DIRECTORY [SEEDS [STEPS]]
#
# Each run is a directory in DIRECTORY, and one that has ended is not repeated: started again, the
# script goes on where it was. Without further arguments it makes 3 seeds of 8,000 steps; at 20
# steps a second of each of eight flows, a run takes a minute.
set -euo pipefail

out=${1:?usage: docs/distributed/live.sh DIRECTORY [SEEDS [STEPS]]}
seeds=${2:-3}
steps=${3:-8000}
root=$(cd "$(dirname "$0")/../.." && pwd)
export PATH=$root/target/release:$PATH
mkdir -p "$out"
cd "$out"

port=17557
agent=live$$
started=()

# Ends what is left of a run, the latest first: the agent is there until its flows are gone.
end() {
  local at
  for ((at = ${#started[@]} - 1; at >= 0; at--)); do
    kill -INT "${started[at]}" 2> /dev/null || true
    wait "${started[at]}" || true
  done
  started=()
}
trap end EXIT

# configure NAME LEARNING_RATE ENTROPY_COST: the same run but for these.
configure() {
  cat > "$1.toml" << END
serving = "softmax"
[environment]
kind = "network"
episode_s = 10
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
random = { rate_mbps = [20, 50], delay_ms = [5, 20], queue_bdp = [2, 4] }
[model]
hidden = [64]
activation = "tanh"
lstm = 0
[learner]
batch = 8
unroll = 20
discount = 0.95
learning_rate = $2
epsilon = 1e-4
entropy_cost = $3
[learner.replay]
ratio = 1.0
END
}

# The links of the live flows: slower ones than the simulated ones, and with other queues.
: > links.toml
for rate in 3 5 8 12; do
  for queue in 0.5 6; do
    cat >> links.toml << END
[[scenario]]
name = "$rate-mbps-$queue-bdp"
rate_mbps = $rate
delay_ms = 30
queue = { bdp = $queue }
END
  done
done

# live KIND SEED: one run, and a line with its end.
live() {
  local name=$1-$2
  if [ ! -s "$name.end" ]; then
    rm -rf "$name" "$name.recordings" "$name.traffic"
    cc-agent run --name "$agent" --policy "init-$2/policy.onnx" \
      --record "$name.recordings" --record-delay-s 1 > "$name.agent" 2>&1 &
    started+=($!)
    until cc-agent status --name "$agent" > /dev/null 2>&1; do
      kill -0 "${started[0]}" || { cat "$name.agent" >&2; exit 1; }
      sleep 0.2
    done
    cc-trainer evaluate --schemes "$agent" --scenarios links.toml --seconds 20 --runs 1000 \
      --jobs 8 --out "$name.traffic" > /dev/null 2> "$name.traffic.log" &
    started+=($!)
    cc-trainer act --learner "grpc://127.0.0.1:$port" --recording "$name.recordings" \
      --socket "/run/cc-agent/$agent.sock" 2> "$name.worker" &
    started+=($!)
    cc-trainer train --config "$1.toml" --init "init-$2/policy.onnx" --seed "$2" \
      --steps "$steps" --actors 0 --listen "127.0.0.1:$port" --max-lag 1000 --out "$name" \
      > "$name.part" 2> "$name.log"
    end
    mv "$name.part" "$name.end"
  fi
  echo "$name: $(head -n 1 "$name.end")"
}

configure init 2e-3 0.01
configure further 1e-3 0.001
configure unchanged 1e-12 0.001
echo "# Processors: $(nproc), $(uname -r), $(date -u +%F)"
for ((seed = 1; seed <= seeds; seed++)); do
  cc-trainer train --config init.toml --seed "$seed" --steps 100000 --actors 0 --out "init-$seed" \
    > "init-$seed.end" 2> "init-$seed.log"
  live further "$seed"
  live unchanged "$seed"
  cc-trainer evaluate --scenarios links.toml --seconds 20 --runs 2 --jobs 8 \
    --schemes "init=init-$seed/policy.onnx,further=further-$seed/policy.onnx,unchanged=unchanged-$seed/policy.onnx" \
    --out "compared-$seed" > /dev/null 2> "compared-$seed.log"
  echo "# Seed $seed"
  cat "compared-$seed/table.md"
done
