#!/bin/bash
# Trains the variants of cc-trainer/training/abr-ablations.toml and evaluates them. The tables are
# in docs/abr.md. It needs jq. Build before: cargo build --release --bins
#
#   docs/abr/ablations.sh DIRECTORY HSDPA-TRAIN HSDPA-TEST FCC OBOE
#
# The four are directories of traces. FCC and Oboe have no training part: in the order of their
# names, the first half of each is trained on by one variant, and the second half is tested on.
# DIRECTORY keeps the study, which continues where it was ended, and the scores (*/abr.json).
set -euo pipefail

usage='usage: docs/abr/ablations.sh DIRECTORY HSDPA-TRAIN HSDPA-TEST FCC OBOE'
out=${1:?$usage}
train=$(realpath "${2:?$usage}")
hsdpa=$(realpath "${3:?$usage}")
fcc=$(realpath "${4:?$usage}")
oboe=$(realpath "${5:?$usage}")
root=$(cd "$(dirname "$0")/../.." && pwd)
export PATH=$root/target/release:$PATH
mkdir -p "$out"
cd "$out"

# Links to the first and to the second half of a directory's traces.
halves() {
  local from=$1 first=$2 second=$3 name count number=0
  [ -d "$first" ] && return
  mkdir "$first" "$second"
  count=$(find "$from" -mindepth 1 -maxdepth 1 -name '[!.]*' | wc -l)
  for name in $(cd "$from" && LC_ALL=C ls); do
    number=$((number + 1))
    if ((2 * number <= count)); then ln -s "$from/$name" "$first/"; else ln -s "$from/$name" "$second/"; fi
  done
}

ln -sfn "$train" traces
ln -sfn "$hsdpa" hsdpa
halves "$fcc" fcc fcc-test
halves "$oboe" oboe oboe-test

cc-trainer study --config "$root/cc-trainer/training/abr-ablations.toml" --out ablations

# What tabular Q-learning learns from the same traces.
[ -f table.json ] || cc-trainer abr tabular --traces traces --out table.json

policies=$(printf '%s,' ablations/*-[0-9]/policy.onnx)
evaluate() {
  local name=$1
  shift
  cc-trainer abr evaluate --out "$name" "$@" > /dev/null
}
tests=(--traces hsdpa --traces fcc-test --traces oboe-test)
evaluate scores "${tests[@]}" --schemes "${policies}table.json,robust-mpc"
# Videos that lack bitrates.
for without in 300 4300 750,1850 1200,1850,2850; do
  evaluate "scores-without-$without" "${tests[@]}" --without "$without" \
    --schemes "$(printf '%s,' ablations/{masks,penalties}-[0-9]/policy.onnx)robust-mpc"
done

# The mean over the seeds of each variant, and the seeds.
for scores in scores*/abr.json; do
  printf '\n%s\n' "$(dirname "$scores")"
  jq -r '
    [.rows[] | {set, scheme: (.scheme | sub("^ablations/"; "") | sub("-[0-9]+/policy.onnx$"; "")), qoe: .mean.qoe}]
    | group_by(.scheme)[]
    | [.[0].scheme, (group_by(.set)[] | "\(.[0].set) \(([.[].qoe] | add / length * 1000 | round / 1000)) (\([.[].qoe * 1000 | round / 1000] | map(tostring) | join(" ")))")]
    | join("  ")' "$scores"
done
