#!/bin/bash
# Plays a video with dash.js in Chromium over three traces: a scheme of `cc-trainer abr serve`
# beside dash.js's own rules (with its own buffer, and with one of 60 s as the scheme has), over
# three TCPs, with slow start after idle and without; then with the server of the decisions farther
# away. Run it as root on an otherwise idle machine, after `cargo xtask build` and
# `cargo xtask setup --player`.
#
#   docs/abr/player.sh DIRECTORY [SCHEME [OPTION]...]
#
# SCHEME is robust-mpc unless given. Each OPTION is one of `cc-trainer abr play`: --jobs 4 plays
# four sessions at the same time, which two processors have time for, and --first-chunks 8 the
# beginning of the video only. With --jobs 4 the 63 sessions of up to 3 minutes take some 50 minutes.
#
# DIRECTORY gets the traces and sessions.jsonl, a line for each session. Sessions that it has are
# not played again: what was ended early continues. The table at the end has all that are in it.
set -euo pipefail

out=${1:?usage: docs/abr/player.sh DIRECTORY [SCHEME [OPTION]...]}
scheme=${2:-robust-mpc}
shift $(($# < 2 ? $# : 2))
root=$(cd "$(dirname "$0")/../.." && pwd)
export PATH=$root/target/release:$PATH
mkdir -p "$out"

if [ ! -d "$out/traces" ]; then
  cc-trainer abr traces --family cellular --count 3 --seed 1 --out "$out/traces"
fi

# A browser that crashes ends the sessions; the next attempt plays what is left.
play() {
  local attempt
  for attempt in 1 2 3; do
    if cc-trainer abr play --traces "$out/traces" --out "$out/sessions.jsonl" "$@"; then
      return
    fi
    echo "attempt $attempt of 3 ended early" >&2
  done
  return 1
}

play --select "$scheme,dash:dynamic,dash:dynamic@60" --tcp rlcc,cubic,bbr \
  --slow-start-after-idle on,off "$@" > /dev/null
play --select "$scheme" --tcp cubic --decision-rtt-ms 0,20,50,100 "$@"
