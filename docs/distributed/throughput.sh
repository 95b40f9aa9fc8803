#!/bin/bash
# Measures one learner with workers that only send: throughput, utilisation and handling time, by
# network, length of rollouts, number of workers, and the link between them. Run it on an otherwise
# idle machine; it takes ten minutes. Build it before:
#
#   cargo build --release --package cc-trainer --example measure_exchange
#   docs/distributed/throughput.sh DIRECTORY [SECONDS]
#
# Each measurement is a file in DIRECTORY, and one that is there is not repeated: started again, the
# script goes on where it was. SECONDS is the time that is counted in each, 10 without it. Links
# with delay and loss need root, iproute2 and the kernel's netem; without these they are left out.
set -euo pipefail

out=${1:?usage: docs/distributed/throughput.sh DIRECTORY [SECONDS]}
seconds=${2:-10}
root=$(cd "$(dirname "$0")/../.." && pwd)
export PATH=$root/target/release/examples:$PATH
command -v measure_exchange > /dev/null || { echo "build it first, as this file says" >&2; exit 1; }
mkdir -p "$out"

# measure NAME OPTION...: one measurement, into the file NAME.
measure() {
  local file=$out/$1
  shift
  if [ ! -s "$file" ]; then
    measure_exchange --seconds "$seconds" "$@" > "$file.part"
    mv "$file.part" "$file"
  fi
  cat "$file"
}

echo "# Processors: $(nproc), $(uname -r), $(date -u +%F)"
echo "# Local workers, a process each"
for processes in 1 2 4 8; do
  for network in theirs ours; do
    measure "local-$network-$processes" --network "$network" --unroll 20 \
      --workers "$processes" --processes "$processes"
  done
done

echo "# The axes of the source's table; an episode of CartPole has 500 steps at most"
for network in theirs ours; do
  for unroll in 20 500 2048; do
    # About 650 steps, or one rollout, for each update.
    batch=$((640 / unroll > 1 ? 640 / unroll : 1))
    for workers in 12 64; do
      measure "table-$network-$unroll-$workers" --network "$network" --unroll "$unroll" \
        --batch "$batch" --workers "$workers"
      measure "idle-$network-$unroll-$workers" --network "$network" --unroll "$unroll" \
        --batch "$batch" --workers "$workers" --idle
    done
  done
done

echo "# Many"
measure many-100 --network theirs --unroll 20 --workers 100
measure many-1000 --network theirs --unroll 20 --workers 1000 --warm-up 20

echo "# Eight workers behind cc-trainer shim (TCP): a delay each way, and 1 % of the pieces lost on"
echo "# the way to the learner, which are sent again"
for delay in 0 1 10 100; do
  printf 'delay_ms = %s\n[there]\nloss = 0.01\n' "$delay" > "$out/shim-$delay.toml"
  measure "shim-$delay" --network theirs --unroll 20 --workers 8 --processes 8 \
    --shim "$out/shim-$delay.toml"
done

echo "# Eight workers behind a link of the kernel's with 1 % loss"
space=rlcc-exchange-$$
# Without root, or without netem.
if ip netns add "$space" 2> /dev/null; then
  trap 'ip netns del "$space"' EXIT
  ip link add "rlcc$$" type veth peer name far netns "$space"
  ip addr add 198.18.0.1/30 dev "rlcc$$"
  ip link set "rlcc$$" up
  ip -n "$space" addr add 198.18.0.2/30 dev far
  ip -n "$space" link set far up
  for delay in 1 10 50 100; do
    # Half of the round trip's delay each way; what is lost are rollouts, not policies.
    if tc qdisc replace dev "rlcc$$" root netem delay "${delay}ms" limit 100000 \
      && tc -n "$space" qdisc replace dev far root netem delay "${delay}ms" loss 1% limit 100000
    then
      measure "link-$delay" --network theirs --unroll 20 --workers 8 --processes 8 \
        --listen 198.18.0.1 --netns "$space"
    else
      echo "without netem: left out"
      break
    fi
  done
else
  echo "without root: left out"
fi
