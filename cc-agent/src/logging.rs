//! Log lines: to standard error, or kept back while the live view has the terminal.

use std::{
    collections::VecDeque,
    io::{self, IsTerminal, Write},
    sync::{Arc, Mutex, PoisonError},
};

use tracing_subscriber::{EnvFilter, fmt::MakeWriter};

/// Lines kept back, at most.
const KEPT: usize = 200;

/// Starts logging; `RUST_LOG` chooses what, `info` by default. What was kept back is printed when
/// the guard is dropped.
pub fn start(plain: bool) -> Guard {
    let kept = (!plain && io::stdout().is_terminal()).then(Kept::default);
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        // Or it panics where it cannot tell standard error that standard error is closed.
        .log_internal_errors(false)
        .with_ansi(io::stderr().is_terminal());
    // A second start, in a test, keeps the first.
    let _ = match &kept {
        Some(kept) => builder.with_writer(kept.clone()).try_init(),
        None => builder.with_writer(io::stderr).try_init(),
    };
    Guard(kept)
}

/// Prints what was kept back when dropped.
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
        if lines.len() == KEPT {
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
