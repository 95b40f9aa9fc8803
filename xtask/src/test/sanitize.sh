#!/bin/bash
# Compiles a crate of the workspace with AddressSanitizer: cargo calls this in place of rustc. The
# sanitizers are unstable; this lets a stable compiler have them, for the workspace alone. Not in
# plain sh, which drops variables such as CARGO_BIN_EXE_cc-agent.
RUSTC_BOOTSTRAP=1 exec "$@" -Zsanitizer=address
