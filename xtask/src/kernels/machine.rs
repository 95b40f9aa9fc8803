//! A machine that qemu emulates: it boots a kernel and reports over a serial port.
//!
//! It has one processor, and its time is virtual (`-icount`): it advances by 2 ns with each
//! instruction, and while the processor is idle it jumps to the next timer. What is timed in it
//! does therefore not depend on what else this host does. Everything random comes from one seed, so
//! that the same image does the same again, to the bit.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

/// The emulator. Hardware virtualisation is not used: it is often not there, and has no virtual
/// time.
pub(super) const QEMU: &str = "qemu-system-x86_64";

/// Memory of the machine. A third holds the files.
const MEMORY_MB: u32 = 2048;

/// What the machine wrote, beside the report.
pub(super) struct Logs {
    /// The kernel's messages, from the first serial console.
    pub(super) console: PathBuf,
    /// The standard error of the programs that ran.
    pub(super) errors: PathBuf,
    /// What the job handed over.
    pub(super) output: PathBuf,
}

impl Logs {
    /// Names the logs in a directory.
    pub(super) fn within(directory: &Path) -> Self {
        Self {
            console: directory.join("console.log"),
            errors: directory.join("errors.log"),
            output: directory.join("output"),
        }
    }
}

/// A running machine, killed when it is dropped.
struct Machine(Child);

impl Drop for Machine {
    fn drop(&mut self) {
        // It may have ended.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Boots a kernel and calls `on_line` with each line of its report, until it powers off.
///
/// # Errors
///
/// Returns an error when qemu cannot be started or fails, and when no line arrives for `deadline`.
pub(super) fn boot(
    image: &Path,
    initial_files: &Path,
    logs: &Logs,
    deadline: Duration,
    mut on_line: impl FnMut(&str),
) -> Result<()> {
    for log in [&logs.console, &logs.errors, &logs.output] {
        fs::write(log, []).with_context(|| format!("cannot write {}", log.display()))?;
    }
    let mut command = command(image, initial_files, logs);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {QEMU}"))?;
    let output = child.stdout.take().context("qemu has no output")?;
    let mut machine = Machine(child);
    let (sender, lines) = mpsc::channel();
    let reading = thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line);
            if sender.send(line.trim_end_matches('\r').to_owned()).is_err() {
                return;
            }
        }
    });
    let mut last = Instant::now();
    loop {
        match lines.recv_timeout(Duration::from_millis(200)) {
            Ok(line) => {
                last = Instant::now();
                on_line(&line);
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) if last.elapsed() > deadline => bail!(
                "the machine reported nothing for {} s and was stopped",
                deadline.as_secs()
            ),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
    reading.join().ok().context("the reading thread panicked")?;
    let status = machine.0.wait()?;
    if !status.success() {
        bail!("{QEMU} failed: {status}");
    }
    Ok(())
}

/// Creates the call of qemu. It yields to everything else, as it takes a whole core.
fn command(image: &Path, initial_files: &Path, logs: &Logs) -> Command {
    let mut command = Command::new("nice");
    command.args(["-n", "19", QEMU]);
    // What there is: a processor, memory, serial ports, and nothing else.
    command.args(["-nodefaults", "-no-user-config", "-display", "none"]);
    // Without these two features memory is copied by whole words, which qemu emulates in fewer
    // steps than single bytes: kernels start in half of the time.
    let processor = "max,-erms,-fsrm";
    command.args(["-machine", "q35", "-accel", "tcg", "-cpu", processor]);
    command.args(["-smp", "1", "-m", &MEMORY_MB.to_string()]);
    // The time, and everything random.
    command.args(["-icount", "shift=1,sleep=off", "-seed", "1"]);
    command.args(["-rtc", "base=2026-01-01T00:00:00,clock=vm"]);
    command.arg("-kernel").arg(image);
    command.arg("-initrd").arg(initial_files);
    // A panic ends the machine (-no-reboot), and addresses are the same each time.
    command.arg("-no-reboot");
    command.args(["-append", "console=ttyS0 panic=-1 quiet nokaslr norandmaps"]);
    command.arg("-serial");
    command.arg(format!("file:{}", logs.console.display()));
    command.args(["-serial", "stdio"]);
    for log in [&logs.errors, &logs.output] {
        command
            .arg("-serial")
            .arg(format!("file:{}", log.display()));
    }
    command
}
