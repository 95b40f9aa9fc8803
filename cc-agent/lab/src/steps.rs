//! The system calls by which a process changes or takes something, one by one.
//!
//! A seccomp filter hands each of them to this program before the kernel carries it out
//! (seccomp_unotify(2)), whichever thread of the process makes it. It can then be let through, be
//! made to fail, or be the last thing that the process tries. Calls that only read are left alone,
//! so that the number of steps of a program is small and hardly varies.

use std::{
    fs,
    io::{self, Read, Write},
    mem,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::{fs::FileExt, net::UnixStream, process::CommandExt},
    },
    process::Command,
    thread,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// What becomes of a [`Step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The kernel carries it out.
    Proceed,
    /// It fails with this error number and has no effect.
    Fail(i32),
    /// The process is killed before it.
    Kill,
}

/// A system call that a supervised process is about to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The number of steps before it.
    pub number: usize,
    /// The name of the system call.
    pub call: &'static str,
    /// The file that it names, or the command of `bpf`; empty for other calls.
    pub object: String,
}

/// Which calls of one number are steps.
enum When {
    Always,
    /// Those with one of these bits in the argument of this index.
    Any(usize, u32),
    /// Those with this value as the argument of this index.
    Equal(usize, u32),
}

/// What the second line of a report is made of.
enum Object {
    None,
    /// The command of `bpf(2)`.
    Bpf(&'static str),
    /// The path at the argument of this index.
    Path(usize),
}

struct Rule {
    number: i64,
    call: &'static str,
    when: When,
    object: Object,
}

const fn rule(number: i64, call: &'static str, when: When, object: Object) -> Rule {
    Rule {
        number,
        call,
        when,
        object,
    }
}

/// A command of `bpf(2)` by its number (include/uapi/linux/bpf.h).
const fn bpf(command: u32, name: &'static str) -> Rule {
    rule(
        libc::SYS_bpf,
        "bpf",
        When::Equal(0, command),
        Object::Bpf(name),
    )
}

const fn plain(number: i64, call: &'static str) -> Rule {
    rule(number, call, When::Always, Object::None)
}

const fn on_path(number: i64, call: &'static str, argument: usize) -> Rule {
    rule(number, call, When::Always, Object::Path(argument))
}

const WRITING: u32 = (libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT) as u32;

const RULES: &[Rule] = &[
    bpf(0, "MAP_CREATE"),
    bpf(2, "MAP_UPDATE_ELEM"),
    bpf(3, "MAP_DELETE_ELEM"),
    bpf(5, "PROG_LOAD"),
    bpf(8, "PROG_ATTACH"),
    bpf(18, "BTF_LOAD"),
    bpf(22, "MAP_FREEZE"),
    bpf(28, "LINK_CREATE"),
    bpf(29, "LINK_UPDATE"),
    // Files.
    rule(
        libc::SYS_openat,
        "openat",
        When::Any(2, WRITING),
        Object::Path(1),
    ),
    on_path(libc::SYS_mkdirat, "mkdirat", 1),
    on_path(libc::SYS_renameat2, "renameat2", 3),
    on_path(libc::SYS_unlinkat, "unlinkat", 1),
    on_path(libc::SYS_fchmodat, "fchmodat", 1),
    on_path(libc::SYS_fchownat, "fchownat", 1),
    plain(libc::SYS_fchmod, "fchmod"),
    plain(libc::SYS_fsync, "fsync"),
    plain(libc::SYS_fdatasync, "fdatasync"),
    plain(libc::SYS_ftruncate, "ftruncate"),
    // Descriptors that are not files.
    plain(libc::SYS_memfd_create, "memfd_create"),
    plain(libc::SYS_socket, "socket"),
    plain(libc::SYS_socketpair, "socketpair"),
    plain(libc::SYS_bind, "bind"),
    plain(libc::SYS_listen, "listen"),
    plain(libc::SYS_epoll_create1, "epoll_create1"),
    plain(libc::SYS_eventfd2, "eventfd2"),
    // Processes and threads.
    plain(libc::SYS_clone, "clone"),
    plain(libc::SYS_clone3, "clone3"),
    plain(libc::SYS_setns, "setns"),
    plain(libc::SYS_kill, "kill"),
    // Calls that newer architectures do not have.
    #[cfg(target_arch = "x86_64")]
    on_path(libc::SYS_mkdir, "mkdir", 0),
    #[cfg(target_arch = "x86_64")]
    on_path(libc::SYS_rename, "rename", 1),
    #[cfg(target_arch = "x86_64")]
    on_path(libc::SYS_unlink, "unlink", 0),
    #[cfg(target_arch = "x86_64")]
    on_path(libc::SYS_chmod, "chmod", 0),
    #[cfg(target_arch = "x86_64")]
    on_path(libc::SYS_lchown, "lchown", 0),
];

/// Makes `command` start a process that asks `judge` about each of its [`Step`]s, on a thread of
/// this program. The steps of its child processes are let through. The command may be started once.
///
/// # Panics
///
/// Panics if there is no descriptor left. Starting the command fails without root.
pub fn supervise(command: &mut Command, judge: impl FnMut(&Step) -> Verdict + Send + 'static) {
    let (here, there) = UnixStream::pair().expect("a free descriptor");
    thread::spawn(move || {
        // Ends at once if the command is never started.
        if let Ok((pid, listener)) = take_listener(here) {
            serve(&listener, pid, judge);
        }
    });
    let filter = filter();
    // SAFETY: between fork and exec only system calls are made.
    unsafe { command.pre_exec(move || install(&filter, &there)) };
}

/// Installs the filter in this process and hands its listener to the other end of `there`.
fn install(filter: &[libc::sock_filter], mut there: &UnixStream) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: the filter outlives the call, which does not write to it.
    let listener = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const program,
        )
    };
    if listener < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut message = [0; 8];
    message[..4].copy_from_slice(&std::process::id().to_ne_bytes());
    message[4..].copy_from_slice(&(listener as i32).to_ne_bytes());
    there.write_all(&message)?;
    // The other end has its copy now; this one is closed at the exec.
    there.read_exact(&mut [0])
}

/// Returns the process that has installed the filter, and the filter's listener.
fn take_listener(mut here: UnixStream) -> io::Result<(Pid, OwnedFd)> {
    let mut message = [0; 8];
    here.read_exact(&mut message)?;
    let number = |bytes: &[u8]| i32::from_ne_bytes(bytes.try_into().expect("four of eight"));
    let (pid, theirs) = (number(&message[..4]), number(&message[4..]));
    let owned = |fd: libc::c_long| match fd {
        // SAFETY: the kernel has just returned it.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) }),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: has no pointers.
    let process = owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: has no pointers.
    let listener = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), theirs, 0) };
    let listener = owned(listener)?;
    here.write_all(&[0])?;
    Ok((Pid::from_raw(pid), listener))
}

/// Passes the calls of `pid` to `judge` until no process with the filter is left.
fn serve(listener: &OwnedFd, pid: Pid, mut judge: impl FnMut(&Step) -> Verdict) {
    let mut number = 0;
    while let Some(call) = next_call(listener) {
        let is_own = thread_group(call.pid) == Some(pid.as_raw());
        let verdict = if is_own {
            let rule = rule_of(&call.data);
            let step = Step {
                number,
                call: rule.map_or("?", |rule| rule.call),
                object: rule.map_or_else(String::new, |rule| object_of(rule, &call)),
            };
            number += 1;
            judge(&step)
        } else {
            Verdict::Proceed
        };
        let (error, flags) = match verdict {
            Verdict::Proceed => (0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32),
            Verdict::Fail(number) => (-number, 0),
            Verdict::Kill => {
                // The call, which waits for an answer, ends with the process.
                let _ = kill(pid, Signal::SIGKILL);
                continue;
            }
        };
        let mut answer = libc::seccomp_notif_resp {
            id: call.id,
            val: 0,
            error,
            flags,
        };
        // SAFETY: the answer outlives the call. It fails when the process has been killed.
        unsafe { libc::ioctl(listener.as_raw_fd(), NOTIF_SEND, &raw mut answer) };
    }
}

const NOTIF_RECV: libc::Ioctl = libc::SECCOMP_IOCTL_NOTIF_RECV;
const NOTIF_SEND: libc::Ioctl = libc::SECCOMP_IOCTL_NOTIF_SEND;

/// Waits for the next call; `None` when no process with the filter is left.
fn next_call(listener: &OwnedFd) -> Option<libc::seccomp_notif> {
    loop {
        let mut ready = libc::pollfd {
            fd: listener.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one descriptor, in a place that outlives the call.
        unsafe { libc::poll(&raw mut ready, 1, -1) };
        if ready.revents & libc::POLLIN == 0 {
            if ready.revents != 0 {
                return None;
            }
            continue;
        }
        // SAFETY: all-zero bytes are a valid notification, and what the kernel asks for.
        let mut call: libc::seccomp_notif = unsafe { mem::zeroed() };
        // SAFETY: the place is as large as this kernel header says; the kernel writes no more.
        let outcome = unsafe { libc::ioctl(listener.as_raw_fd(), NOTIF_RECV, &raw mut call) };
        // Otherwise the thread has been killed meanwhile.
        if outcome == 0 {
            return Some(call);
        }
    }
}

fn rule_of(data: &libc::seccomp_data) -> Option<&'static Rule> {
    RULES.iter().find(|rule| {
        let argument = |index: usize| data.args[index] as u32;
        rule.number == i64::from(data.nr)
            && match rule.when {
                When::Always => true,
                When::Any(index, bits) => argument(index) & bits != 0,
                When::Equal(index, value) => argument(index) == value,
            }
    })
}

fn object_of(rule: &Rule, call: &libc::seccomp_notif) -> String {
    match rule.object {
        Object::None => String::new(),
        Object::Bpf(command) => command.into(),
        Object::Path(index) => path_at(call.pid, call.data.args[index]).unwrap_or_default(),
    }
}

/// Reads a path in the memory of a thread.
fn path_at(thread: u32, address: u64) -> io::Result<String> {
    let memory = fs::File::open(format!("/proc/{thread}/mem"))?;
    let mut path = [0; 256];
    let read = memory.read_at(&mut path, address)?;
    let path = path[..read].split(|&byte| byte == 0).next().unwrap_or(&[]);
    Ok(String::from_utf8_lossy(path).into_owned())
}

/// The process that a thread belongs to.
fn thread_group(thread: u32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let group = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    group.trim().parse().ok()
}

/// The filter that sends the calls of [`RULES`] to the listener and permits all others.
fn filter() -> Vec<libc::sock_filter> {
    let statement = |code: u32, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    // If it does not hold, `otherwise` instructions are skipped.
    let test = |test: u32, k: u32, otherwise: u8| libc::sock_filter {
        code: (libc::BPF_JMP | test | libc::BPF_K) as u16,
        jt: 0,
        jf: otherwise,
        k,
    };
    let load = |offset: usize| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset as u32);
    let number = load(mem::offset_of!(libc::seccomp_data, nr));
    // The lower half of an argument, on little-endian machines.
    let argument = |index| load(mem::offset_of!(libc::seccomp_data, args) + 8 * index);
    let answer = |answer| statement(libc::BPF_RET | libc::BPF_K, answer);
    let stop = answer(libc::SECCOMP_RET_USER_NOTIF);
    let mut filter = vec![number];
    for rule in RULES {
        let is_called = |skip| test(libc::BPF_JEQ, rule.number as u32, skip);
        match rule.when {
            When::Always => filter.extend([is_called(1), stop]),
            When::Any(index, bits) => {
                let holds = test(libc::BPF_JSET, bits, 1);
                filter.extend([is_called(4), argument(index), holds, stop, number]);
            }
            When::Equal(index, value) => {
                let holds = test(libc::BPF_JEQ, value, 1);
                filter.extend([is_called(4), argument(index), holds, stop, number]);
            }
        }
    }
    filter.push(answer(libc::SECCOMP_RET_ALLOW));
    filter
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::process::ExitStatusExt,
        sync::{Arc, Mutex},
    };

    use super::*;
    use crate::harness::unmet_requirement;

    /// Runs `sh -c script` under a judge, and returns its status and steps.
    fn run(
        script: &str,
        mut judge: impl FnMut(&Step) -> Verdict + Send + 'static,
    ) -> (std::process::ExitStatus, Vec<Step>) {
        let steps = Arc::new(Mutex::new(Vec::new()));
        let mut command = Command::new("sh");
        command.args(["-c", script]).current_dir("/tmp");
        let seen = Arc::clone(&steps);
        supervise(&mut command, move |step| {
            seen.lock().expect("no panic").push(step.clone());
            judge(step)
        });
        let status = command.status().expect("it starts");
        let steps = std::mem::take(&mut *steps.lock().expect("no panic"));
        (status, steps)
    }

    #[test]
    fn calls_that_change_something_are_steps() {
        if let Some(reason) = unmet_requirement() {
            eprintln!("SKIPPED: {reason}");
            return;
        }
        let file = format!("/tmp/cc-lab-steps-{}", std::process::id());
        let script = format!("read x < /dev/null; : > {file}; exit 7");
        let (status, steps) = run(&script, |_| Verdict::Proceed);
        assert_eq!(status.code(), Some(7));
        let opened = |step: &&Step| step.call == "openat" && step.object == file;
        let opened = steps.iter().find(opened).expect("it opens the file");
        assert!(fs::remove_file(&file).is_ok());
        assert!(!steps.iter().any(|step| step.object == "/dev/null"));

        let number = opened.number;
        let (status, _) = run(&script, move |step| match step.number == number {
            true => Verdict::Fail(libc::ENOSPC),
            false => Verdict::Proceed,
        });
        assert_ne!(status.code(), Some(7));
        assert!(!fs::exists(&file).expect("looks"));
        let (status, _) = run(&script, move |step| match step.number == number {
            true => Verdict::Kill,
            false => Verdict::Proceed,
        });
        assert_eq!(status.signal(), Some(libc::SIGKILL));
        assert!(!fs::exists(&file).expect("looks"));
    }
}
