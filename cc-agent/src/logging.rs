//! Log lines: written to standard error, or kept while the live view uses the terminal.

use std::{
    collections::VecDeque,
    io::{self, IsTerminal, Write},
    sync::{Arc, Mutex, PoisonError},
};

use tracing_subscriber::{EnvFilter, fmt::MakeWriter};

/// Lines that are kept, at most; the oldest go first.
const KEPT_LINES: usize = 200;

/// Starts logging at the level that `RUST_LOG` sets, `info` by default.
///
/// On a terminal, unless `plain`, lines are kept instead of written, and written when the guard is
/// dropped.
pub fn start(plain: bool) -> Guard {
    let kept = (!plain && io::stdout().is_terminal()).then(Kept::default);
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        // Otherwise it panics when standard error is closed, as it reports that there.
        .log_internal_errors(false)
        .with_ansi(io::stderr().is_terminal());
    // Only the first start of a process has an effect; tests start logging more than once.
    let _ = match &kept {
        Some(kept) => builder.with_writer(kept.clone()).try_init(),
        None => builder.with_writer(io::stderr).try_init(),
    };
    Guard(kept)
}

/// Writes the kept lines to standard error when dropped.
pub struct Guard(Option<Kept>);

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(kept) = &self.0 {
            let lines = std::mem::take(&mut *kept.lines());
            for line in lines {
                let _ = io::stderr().write_all(&line);
            }
        }
    }
}

#[derive(Clone, Default)]
struct Kept(Arc<Mutex<VecDeque<Vec<u8>>>>);

impl Kept {
    fn lines(&self) -> std::sync::MutexGuard<'_, VecDeque<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for Kept {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut lines = self.lines();
        if lines.len() == KEPT_LINES {
            lines.pop_front();
        }
        lines.push_back(line.to_owned());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Kept {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}
