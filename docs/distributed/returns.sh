#!/bin/bash
# Compares the returns of a run with eight local actors, of one with eight workers that are
# processes of their own, of one whose workers and learner are killed all the time, and of one of
# two learners of half a batch each. Run it on an otherwise idle machine. How long it takes depends
# on that machine; a second argument of 1 makes one seed. Build it before:
#
#   cargo build --release --bins
#   docs/distributed/returns.sh DIRECTORY [SEEDS [STEPS OF CARTPOLE [STEPS OF THE LINKS]]]
#
# Each run is a directory in DIRECTORY, and one that has ended is not repeated: started again, the
# script goes on where it was. Without further arguments it makes 5 seeds of 600,000 steps of
# CartPole and of 150,000 steps of cc-trainer/training/calibrated.toml.
set -euo pipefail

out=${1:?usage: docs/distributed/returns.sh DIRECTORY [SEEDS [STEPS [STEPS]]]}
seeds=${2:-5}
cartpole=${3:-600000}
links=${4:-150000}
root=$(cd "$(dirname "$0")/../.." && pwd)
training=$root/cc-trainer/training
export PATH=$root/target/release:$PATH
mkdir -p "$out"
cd "$out"

port=17555
started=()

# Kills what is left of a run.
end() {
  for process in "${started[@]}"; do kill -9 "$process" 2> /dev/null || true; done
  wait
  started=()
}
trap end EXIT

# worker COMMAND: starts one that lasts until its run is done, and adds it to `started`.
worker() {
  cc-trainer "$1" --learner "grpc://127.0.0.1:$port" --actors 1 2> /dev/null &
  started+=($!)
}

# run KIND NAME OPTION...: one run of `cc-trainer train`, and a line with its end.
run() {
  local kind=$1 name=$2 learner number
  shift 2
  if [ ! -s "$name.end" ]; then
    rm -rf "$name"
    case $kind in
      actors) cc-trainer train "$@" --actors 8 --out "$name" > "$name.part" 2> "$name.log" ;;
      workers)
        for number in 1 2 3 4 5 6 7 8; do worker act; done
        cc-trainer train "$@" --actors 0 --listen "127.0.0.1:$port" --out "$name" \
          > "$name.part" 2> "$name.log"
        ;;
      learners)
        worker learn
        cc-trainer train "$@" --actors 1 --listen "127.0.0.1:$port" --learners 2 --out "$name" \
          > "$name.part" 2> "$name.log"
        ;;
      killed) killed "$name" "$@" ;;
    esac
    end
    mv "$name.part" "$name.end"
  fi
  echo "$name: $(head -n 1 "$name.end")"
}

# A run of which every 2 s one of eight workers is killed and started again, and the learner too
# after 4 s and after 10 s.
killed() {
  local name=$1 second=0 number learner
  shift
  for number in 1 2 3 4 5 6 7 8; do worker act; done
  local workers=("${started[@]}")
  learn() {
    cc-trainer train "$@" --actors 0 --listen "127.0.0.1:$port" --out "$name" \
      > "$name.part" 2>> "$name.log" &
    learner=$!
  }
  learn "$@"
  while kill -0 "$learner" 2> /dev/null; do
    sleep 1
    second=$((second + 1))
    if ((second % 2 == 0)); then
      number=$((RANDOM % 8))
      kill -9 "${workers[number]}" 2> /dev/null || true
      worker act
      workers[number]=$!
    fi
    if ((second == 4 || second == 10)) && kill -9 "$learner" 2> /dev/null; then
      wait "$learner" || true
      learn "$@"
    fi
  done
  wait "$learner"
}

# Checkpoints are often enough for a learner that is killed, and the run has the same length always.
configure() {
  { echo "checkpoint_seconds = 1"; grep -v '^until_return' "$training/$1"; } > "$1"
}

echo "# Processors: $(nproc), $(uname -r), $(date -u +%F)"
configure cartpole.toml
# Two learners of half of the batch.
sed 's/^batch = 8$/batch = 4/' cartpole.toml > half.toml
for ((seed = 1; seed <= seeds; seed++)); do
  options=(--seed "$seed" --steps "$cartpole")
  for kind in actors workers killed; do
    run "$kind" "cartpole-$kind-$seed" --config cartpole.toml "${options[@]}"
  done
  run learners "cartpole-learners-$seed" --config half.toml "${options[@]}"
done
configure calibrated.toml
for ((seed = 1; seed <= seeds; seed++)); do
  for kind in actors workers; do
    run "$kind" "links-$kind-$seed" --config calibrated.toml --seed "$seed" --steps "$links"
  done
done
