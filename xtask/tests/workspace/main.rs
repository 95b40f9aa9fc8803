//! Checks of the workspace's own text: its style, its crates' dependencies, and its modules.
//!
//! `cargo test -p xtask style` runs the checks of style alone, with `-- --nocapture` to list every
//! line that a count is made of.

mod dependencies;
mod files;
mod limits;
mod modules;
mod style;
