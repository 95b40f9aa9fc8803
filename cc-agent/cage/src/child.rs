//! The child: it reads its job, confines itself, loads the policy, and answers until the agent is
//! gone.

use std::{
    ffi::OsString,
    io::{self, Read, Write},
    os::fd::AsRawFd,
    process::ExitCode,
    thread,
};

use cc_core::{
    error_chain,
    policy::{Choice, Policy, Query},
};
use nix::sys::uio::pread;

use crate::{
    confinement::confine,
    job::{Job, JobHeader, Report},
    layout::Layout,
    load_error::LoadError,
    message::{LENGTH, Message},
    region::{Region, Word},
};

/// The first argument of a process that is to be a child; [`run`] takes the arguments after it.
pub const SUBCOMMAND: &str = "policy-cage";

/// The largest number of queries in a batch.
pub(crate) const MOST_ROWS: usize = 256;

/// Length of the longest report or reason, bytes.
pub(crate) const LONGEST_TEXT: usize = 1 << 20;

/// Runs this process as a child: the arguments are those that come after [`SUBCOMMAND`]. Returns
/// once the agent is gone.
pub fn run(arguments: &[OsString]) -> ExitCode {
    run_with(arguments, |job| {
        let Job {
            policy,
            file,
            interface,
            serving,
            seed,
            ..
        } = job;
        Ok(policy.create(file, interface, *serving, *seed)?)
    })
}

/// As [`run`], with a policy that `create` makes of the job inside the cage. Tests use it.
pub fn run_with(
    arguments: &[OsString],
    create: impl FnOnce(&Job) -> Result<Box<dyn Policy>, LoadError>,
) -> ExitCode {
    match answer_until_the_end(arguments, create) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The log may be full.
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

fn answer_until_the_end(
    arguments: &[OsString],
    create: impl FnOnce(&Job) -> Result<Box<dyn Policy>, LoadError>,
) -> io::Result<()> {
    let number = |at: usize| {
        let number = arguments.get(at).and_then(|argument| argument.to_str());
        number.and_then(|number| number.parse::<u64>().ok())
    };
    let (Some(parent), Some(memory)) = (number(0), number(1)) else {
        return Err(io::Error::other(
            "this command is for the agent's own use, which starts policies with it",
        ));
    };
    // Standard input is the socket, standard output the shared memory, standard error the log.
    let job = read_job(io::stdout().as_raw_fd())?;
    let region = Region::map(&io::stdout())?;
    let lacking = confine(memory, parent as u32);

    let loaded = create(&job).and_then(|policy| job.try_out(policy));
    let (mut policy, mut loaded) = match loaded {
        Ok(loaded) => loaded,
        Err(error) => {
            let length = region.write_text(error_chain(&error).as_bytes(), LONGEST_TEXT);
            return say(Message::Refused {
                length: length as u32,
            });
        }
    };
    loaded.lacking = lacking;
    let layout = layout(&loaded.interface, loaded.file.as_ref(), &region);
    let Some(layout) = layout else {
        let length = region.write_text(b"its queries are too large", LONGEST_TEXT);
        return say(Message::Refused {
            length: length as u32,
        });
    };
    let report = serde_json::to_vec(&Report::of(&loaded))?;
    let length = region.write_text(&report, LONGEST_TEXT);
    say(Message::Loaded {
        length: length as u32,
    })?;
    let decide = |queries: &mut [Query]| {
        let choices = policy.decide(queries);
        if !job.added_delay.is_zero() {
            thread::sleep(job.added_delay);
        }
        choices
    };
    answer(&layout, region.words(), decide, hear, say)
}

/// Answers the batches that the agent announces, as `decide` decides on them, until `hear` hears
/// of none any more.
pub(crate) fn answer(
    layout: &Layout,
    words: &[impl Word],
    mut decide: impl FnMut(&mut [Query]) -> Vec<Choice>,
    mut hear: impl FnMut() -> io::Result<Option<Message>>,
    mut say: impl FnMut(Message) -> io::Result<()>,
) -> io::Result<()> {
    while let Some(Message::Ask { rows, number }) = hear()? {
        let mut queries = layout.read_queries(words, rows as usize);
        let choices = decide(&mut queries);
        layout.write_answers(words, &queries, &choices);
        say(Message::Answered { rows, number })?;
    }
    Ok(())
}

/// The layout of batches for a policy; both sides compute it. `None` when a query has no room.
pub(crate) fn layout(
    interface: &cc_core::interface::Interface,
    file: Option<&cc_core::policy::Summary>,
    region: &Region,
) -> Option<Layout> {
    Layout::new(
        interface.observation_len(),
        interface.actions.len(),
        file.map_or(0, |file| file.meta.state),
        region.words().len(),
        MOST_ROWS,
    )
}

/// Reads the job that the agent has left in the shared memory: the lengths of header and file, the
/// header, the file.
fn read_job(memory: i32) -> io::Result<Job> {
    // SAFETY: standard output stays open as long as the process lives.
    let memory = unsafe { std::os::fd::BorrowedFd::borrow_raw(memory) };
    let mut at = 0;
    let mut read = |length: usize| -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        let mut filled = 0;
        while filled < length {
            match pread(memory, &mut bytes[filled..], at)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => {
                    filled += count;
                    at += count as i64;
                }
            }
        }
        Ok(bytes)
    };
    let mut length = || -> io::Result<usize> {
        let bytes: [u8; 8] = read(8)?
            .try_into()
            .map_err(|_| io::ErrorKind::InvalidData)?;
        Ok(u64::from_ne_bytes(bytes) as usize)
    };
    let (header, file) = (length()?, length()?);
    let header: JobHeader = serde_json::from_slice(&read(header)?)?;
    let job = header.with(read(file)?);
    job.ok_or_else(|| io::Error::other("the job names no policy"))
}

/// Sends a message to the agent.
fn say(message: Message) -> io::Result<()> {
    // Standard output's writer buffers lines; the socket is standard input.
    let socket = io::stdin();
    // SAFETY: standard input stays open as long as the process lives.
    let socket = unsafe { std::os::fd::BorrowedFd::borrow_raw(socket.as_raw_fd()) };
    nix::unistd::write(socket, &message.encode())?;
    Ok(())
}

/// Waits for the agent's next message; `None` when the agent is gone.
fn hear() -> io::Result<Option<Message>> {
    let mut bytes = [0; LENGTH];
    // Standard input's buffer takes no more than one message, for each is a packet.
    let length = io::stdin().lock().read(&mut bytes)?;
    Ok(Message::decode(&bytes[..length]))
}
