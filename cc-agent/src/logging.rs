//! Log lines: written to standard error by a thread of their own, or kept while the live view uses
//! the terminal.
//!
//! The thread that logs never waits. While nobody reads standard error, lines queue up to a limit;
//! further ones are dropped, and the next line that is written says how many they were.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    collections::VecDeque,
    env, fmt,
    fs::File,
    io::{self, IsTerminal, Write},
    os::fd::AsFd,
    panic,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{SyncSender, TrySendError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use nix::{
    poll::{PollFd, PollFlags, poll},
    sys::stat::fstat,
};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::{
    EnvFilter,
    fmt::{self as fmt_layer, FmtContext, FormatEvent, FormatFields, MakeWriter, format::Writer},
    registry::LookupSpan,
};

use crate::kernel::privileges::{self, Capabilities};

/// Lines that are kept while the live view is shown, at most; the oldest go first.
const KEPT_LINES: usize = 200;
/// Lines that wait to be written, at most; later ones are dropped.
const WAITING_LINES: usize = 1_024;
/// Time for which a reader is waited for at the end.
const LAST_LINES: Duration = Duration::from_millis(1_000);

/// Starts logging at the level that `RUST_LOG` sets, `info` by default. Panics are logged too.
///
/// On a terminal, unless `plain`, lines are kept instead of written, and written when the guard is
/// dropped.
///
/// # Errors
///
/// Returns an error when the operating system refuses the thread that writes the lines, or a
/// descriptor for it.
pub fn start(plain: bool) -> io::Result<Guard> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // Otherwise it panics when standard error is closed, as it reports that there.
        .log_internal_errors(false)
        .with_ansi(io::stderr().is_terminal())
        .event_format(Format {
            to_journal: leads_to_journal(&io::stderr()),
        });
    let lines = if !plain && io::stdout().is_terminal() {
        Lines::Kept(Kept::default())
    } else {
        Lines::Written(LineWriter::to_standard_error()?)
    };
    // Only the first start of a process has an effect; tests start logging more than once.
    let _ = match &lines {
        Lines::Kept(kept) => builder.with_writer(kept.clone()).try_init(),
        Lines::Written(writer) => builder.with_writer(writer.clone()).try_init(),
    };
    // The default hook would wait for a reader of standard error.
    panic::set_hook(Box::new(|panic| {
        let backtrace = Backtrace::capture();
        match backtrace.status() {
            BacktraceStatus::Captured => tracing::error!("{panic}\n{backtrace}"),
            _ => tracing::error!("{panic}"),
        }
    }));
    Ok(Guard(lines))
}

/// The form of a line: with the time for people and files; for the journal, which knows the time,
/// with the priority that it stores as the field `PRIORITY`, such as `<6>` (sd-daemon(3)).
struct Format {
    to_journal: bool,
}

impl<S, N> FormatEvent<S, N> for Format
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let format = fmt_layer::format().with_target(false);
        if !self.to_journal {
            return format.format_event(context, writer, event);
        }
        let priority = match *event.metadata().level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            _ => 7,
        };
        write!(writer, "<{priority}>")?;
        let format = format.without_time().with_level(false);
        format.format_event(context, writer, event)
    }
}

/// Whether this is the stream to the journal that systemd has named in `JOURNAL_STREAM`, as device
/// and inode.
fn leads_to_journal(stream: &impl AsFd) -> bool {
    let Ok(named) = env::var("JOURNAL_STREAM") else {
        return false;
    };
    fstat(stream).is_ok_and(|found| named == format!("{}:{}", found.st_dev, found.st_ino))
}

/// Writes a line to standard error before the process ends, and waits only briefly for a reader.
pub fn last_line(text: &str) {
    write_last(format!("{text}\n").as_bytes());
}

/// Writes to standard error while its reader keeps up.
fn write_last(text: &[u8]) {
    // A pipe that is ready takes as much without waiting.
    for part in text.chunks(libc::PIPE_BUF) {
        let stderr = io::stderr();
        let mut ready = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
        match poll(&mut ready, LAST_LINES.as_millis() as u16) {
            Ok(1..) if stderr.lock().write_all(part).is_ok() => {}
            _ => return,
        }
    }
}

/// Where log lines go: the queue of the thread that writes them.
enum Lines {
    Kept(Kept),
    Written(LineWriter),
}

/// Writes the lines that are kept, or still wait, to standard error when dropped. It waits for
/// their reader only briefly.
pub struct Guard(Lines);

impl Drop for Guard {
    fn drop(&mut self) {
        match &self.0 {
            Lines::Written(writer) => writer.flush_within(LAST_LINES),
            Lines::Kept(kept) => {
                write_last(
                    &std::mem::take(&mut *kept.lines())
                        .make_contiguous()
                        .concat(),
                );
            }
        }
    }
}

/// Hands lines, each in one call of `write`, to the thread that writes them.
#[derive(Clone)]
struct LineWriter {
    queue: SyncSender<Message>,
    /// Lines dropped since the last one that was queued.
    lost: Arc<AtomicU64>,
}

struct Message {
    /// Lines that were dropped before this one.
    lost: u64,
    content: Content,
}

enum Content {
    Line(Vec<u8>),
    /// Asks for a notice once everything before has been written.
    Flush(SyncSender<()>),
}

impl LineWriter {
    fn to_standard_error() -> io::Result<Self> {
        // A descriptor of its own: whoever writes through `io::stderr` holds its lock meanwhile.
        match io::stderr().as_fd().try_clone_to_owned() {
            Ok(stderr) => Self::start(File::from(stderr)),
            // Standard error is closed.
            Err(error) if error.raw_os_error() == Some(libc::EBADF) => Self::start(io::sink()),
            Err(error) => Err(error),
        }
    }

    fn start(mut out: impl Write + Send + 'static) -> io::Result<Self> {
        let (queue, messages) = sync_channel::<Message>(WAITING_LINES);
        thread::Builder::new().name("log".into()).spawn(move || {
            // Writing to an open descriptor needs no privilege.
            let _ = privileges::keep_only(Capabilities::NONE);
            for Message { lost, content } in messages {
                if lost > 0 {
                    let notice = format!(
                        "{lost} log lines were lost here, because standard error was not read\n"
                    );
                    let _ = out.write_all(notice.as_bytes());
                }
                match content {
                    Content::Line(line) => {
                        // A reader that has gone is no reason to end.
                        let _ = out.write_all(&line);
                    }
                    Content::Flush(written) => {
                        let _ = written.try_send(());
                    }
                }
            }
        })?;
        Ok(Self {
            queue,
            lost: Arc::default(),
        })
    }

    /// Queues a message unless the queue is full.
    fn send(&self, content: Content) -> Result<(), Content> {
        let lost = self.lost.swap(0, Ordering::Relaxed);
        let sent = self.queue.try_send(Message { lost, content });
        sent.map_err(|refused| {
            let (TrySendError::Full(message) | TrySendError::Disconnected(message)) = refused;
            self.lost.fetch_add(message.lost, Ordering::Relaxed);
            message.content
        })
    }

    /// Waits until everything queued so far has been written, for `limit` at most.
    fn flush_within(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        let left = || deadline.saturating_duration_since(Instant::now());
        let (done, written) = sync_channel(1);
        let mut flush = Content::Flush(done);
        while let Err(refused) = self.send(flush) {
            if left().is_zero() {
                return;
            }
            flush = refused;
            thread::sleep(Duration::from_millis(5));
        }
        let _ = written.recv_timeout(left());
    }
}

impl Write for LineWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.send(Content::Line(line.to_owned())).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LineWriter {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
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

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, PipeReader, pipe};

    use super::*;

    /// Lines, in a form, that a subscriber writes for a warning and an error.
    fn lines_in(to_journal: bool) -> String {
        let kept = Kept::default();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .event_format(Format { to_journal })
            .with_writer(kept.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!("the policy hangs");
            tracing::error!("it is gone");
        });
        String::from_utf8(kept.lines().make_contiguous().concat()).expect("text")
    }

    #[test]
    fn the_journal_is_told_priorities_and_people_the_time() {
        assert_eq!(lines_in(true), "<4>the policy hangs\n<3>it is gone\n");
        let text = lines_in(false);
        assert!(text.contains(" WARN the policy hangs\n"), "{text}");
        assert!(text.starts_with("20"), "a time: {text}");
    }

    #[test]
    fn another_stream_than_the_named_one_is_not_the_journal() {
        let (reader, _writer) = pipe().expect("a pipe");
        // Tests run without JOURNAL_STREAM, or with one that is not this pipe.
        assert!(!leads_to_journal(&reader));
    }

    /// More lines than the queue and a pipe hold.
    const MANY: u64 = 20_000;

    fn write_many(writer: &mut LineWriter) {
        for number in 0..MANY {
            let line = format!("line {number} of a log that nobody reads\n");
            writer.write_all(line.as_bytes()).expect("never fails");
        }
    }

    #[test]
    fn lines_that_nobody_reads_are_dropped_and_counted() {
        let (reader, writer) = pipe().expect("a pipe");
        let mut log = LineWriter::start(writer).expect("a thread");
        write_many(&mut log);
        let (mut read, mut lost) = (0, 0);
        let mut lines = BufReader::new(reader).lines();
        let mut next = |log: &mut LineWriter| {
            // What follows the gap says how large it was.
            let _ = log.write(b"after\n");
            lines.next().expect("the log is open").expect("reads")
        };
        while read + lost < MANY {
            let line = next(&mut log);
            let gap = " log lines were lost here, because standard error was not read";
            match line.strip_suffix(gap) {
                Some(count) => lost += count.parse::<u64>().expect("a number"),
                None => read += u64::from(line.starts_with("line ")),
            }
        }
        assert!(read > 0 && lost > 0, "{read} read, {lost} lost");
    }

    #[test]
    fn the_end_does_not_wait_for_a_reader() {
        let (_reader, writer): (PipeReader, _) = pipe().expect("a pipe");
        let mut log = LineWriter::start(writer).expect("a thread");
        write_many(&mut log);
        // Returns at all: the reader never reads.
        log.flush_within(Duration::from_millis(20));
    }

    #[test]
    fn the_last_lines_are_written_before_the_end() {
        let (reader, writer) = pipe().expect("a pipe");
        let mut log = LineWriter::start(writer).expect("a thread");
        log.write_all(b"the last line\n").expect("never fails");
        log.flush_within(Duration::from_secs(60));
        drop(log);
        let lines: Vec<_> = BufReader::new(reader)
            .lines()
            .map_while(Result::ok)
            .collect();
        assert_eq!(lines, ["the last line"]);
    }
}
