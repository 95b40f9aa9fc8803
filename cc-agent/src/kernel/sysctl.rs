//! The host's default congestion control, `net.ipv4.tcp_congestion_control`.
//!
//! A congestion control that is the default stays so when its agent is killed: the sysctl holds a
//! reference to it, so that every new socket goes on using programs that nobody serves, under a
//! name that nobody can choose (`tcp_set_default_congestion_control`, net/ipv4/tcp_cong.c). An
//! agent therefore writes the former default to a file, `NAME.former` beside its socket, before it
//! changes the sysctl. Whoever comes next restores it from there: the agent itself when it ends,
//! `cc-agent restore`, or the start of any agent.
//!
//! A network namespace that is created copies the default of the initial one, with a reference of
//! its own. Those that still have the name are given another default too.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{
    namespaces::{self, DEFAULT, Repaired},
    process::Process,
};
use crate::state_file;

/// Where the kernel lists the registered congestion controls.
pub(super) const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";

/// What the default goes back to when the former one is unknown or gone: the first that the kernel
/// has. Linux is built with reno in any case.
const USUAL: [&str; 2] = ["cubic", "reno"];

/// Time for looking at the other network namespaces.
const NAMESPACES_LIMIT: Duration = Duration::from_millis(1_000);

/// Why the default could not be changed.
#[derive(Debug, thiserror::Error)]
#[error("{what} {}: {source}{}", file.display(), hint(.source))]
pub struct SysctlError {
    what: String,
    file: PathBuf,
    source: io::Error,
}

/// What an agent remembers of the default that it replaces.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Former {
    /// The default before; `None` where that was not known any more.
    default: Option<String>,
    /// The network namespace whose default it was ([`namespaces::own`]).
    namespace: u64,
    /// The agent that changed the default.
    agent: Option<Process>,
}

/// The files that the default is read from, set by, and remembered in.
#[derive(Clone, Debug)]
struct Place {
    sysctl: PathBuf,
    available: PathBuf,
    /// The directory of [`Former`]s.
    records: PathBuf,
    namespace: u64,
}

impl Place {
    /// This network namespace, and the directory of `socket`.
    fn beside(socket: &Path) -> Self {
        Self {
            sysctl: DEFAULT.into(),
            available: AVAILABLE.into(),
            records: socket.parent().unwrap_or(Path::new("")).to_owned(),
            namespace: namespaces::own().unwrap_or(0),
        }
    }

    fn record(&self, name: &str) -> PathBuf {
        self.records.join(name).with_added_extension("former")
    }

    /// What was remembered by an agent that served `name` in this network namespace. A file that
    /// cannot be used is as good as none.
    fn former(&self, name: &str) -> Option<Former> {
        // Names of congestion controls that the kernel has may contain anything but white space.
        if name.contains('/') {
            return None;
        }
        let path = self.record(name);
        match state_file::read::<Former>(&path) {
            Ok(former) => former.filter(|former| former.namespace == self.namespace),
            Err(error) => {
                tracing::warn!("{} is not used: {error}", path.display());
                None
            }
        }
    }

    fn remember(&self, name: &str, default: Option<String>) -> Result<(), SysctlError> {
        let former = Former {
            default,
            namespace: self.namespace,
            agent: Process::current(),
        };
        let file = self.record(name);
        state_file::write(&file, &former).map_err(|source| SysctlError {
            what: "cannot remember the former default congestion control in".into(),
            file,
            source,
        })
    }

    fn default(&self) -> Result<String, SysctlError> {
        match fs::read_to_string(&self.sysctl) {
            Ok(name) => Ok(name.trim().to_owned()),
            Err(source) => Err(SysctlError {
                what: "cannot read the default congestion control from".into(),
                file: self.sysctl.clone(),
                source,
            }),
        }
    }

    fn set_default(&self, name: &str) -> Result<(), SysctlError> {
        fs::write(&self.sysctl, name).map_err(|source| SysctlError {
            what: format!("cannot make {name} the default congestion control in"),
            file: self.sysctl.clone(),
            source,
        })
    }

    /// Whether a congestion control of this name is registered; true where that cannot be told.
    fn has(&self, name: &str) -> bool {
        fs::read_to_string(&self.available)
            .map_or(true, |names| names.split_whitespace().any(|n| n == name))
    }

    /// The default, had there never been a congestion control called `name`.
    fn default_without(&self, name: &str) -> String {
        let present = self.default().ok().filter(|present| present != name);
        let former = present.or_else(|| self.former(name)?.default);
        let candidates = candidates(name, former.as_deref());
        let found = candidates.iter().find(|candidate| self.has(candidate));
        // `has` is wrong at most where the list cannot be read, and Linux is built with reno.
        found.map_or_else(|| "reno".to_owned(), Clone::clone)
    }

    /// Makes the first of `names` that the kernel has the default, and returns it.
    fn set_first(&self, names: &[String]) -> Result<String, SysctlError> {
        let mut refused = None;
        for name in names {
            match self.set_default(name) {
                Ok(()) => return Ok(name.clone()),
                Err(error) => refused = Some(error),
            }
        }
        Err(refused.expect("there is always a usual one"))
    }

    /// Gives the sysctl the former default in the place of `name`, or the first usual one that the
    /// kernel has. Then does the same for the other network namespaces.
    fn put_back(&self, name: &str, former: Option<String>) -> Result<Restored, SysctlError> {
        let present = self.default()?;
        let changed = present == name;
        let best = former.as_deref().or((!changed).then_some(&present));
        let candidates = candidates(name, best);
        let restored = Restored {
            name: name.into(),
            former,
            default: match changed {
                true => self.set_first(&candidates)?,
                false => present,
            },
            changed,
            namespaces: namespaces::repair(name, &candidates, NAMESPACES_LIMIT),
        };
        let _ = fs::remove_file(self.record(name));
        Ok(restored)
    }

    /// Undoes what agents that were killed have left: for the present default and for `name`.
    /// `thorough` also looks for namespaces with the default `name` when nothing was remembered.
    fn heal(&self, name: &str, thorough: bool) -> Result<Vec<Restored>, SysctlError> {
        let present = self.default()?;
        let mut healed = Vec::new();
        let own = (name != present).then_some((name, thorough));
        for (name, suspect) in [(present.as_str(), true)].into_iter().chain(own) {
            let former = self.former(name);
            let agent = former.as_ref().and_then(|former| former.agent);
            let is_left = match agent.and_then(|agent| agent.lives()) {
                Some(lives) => !lives,
                // Of another PID namespace, or not remembered.
                None => (suspect || agent.is_some()) && !self.has(name),
            };
            if is_left {
                let default = former.and_then(|former| former.default);
                let restored = self.put_back(name, default)?;
                if restored.was_needed() {
                    healed.push(restored);
                }
            }
        }
        Ok(healed)
    }
}

/// What the default in the place of `name` may be, the best first.
fn candidates(name: &str, former: Option<&str>) -> Vec<String> {
    let mut candidates: Vec<String> = Vec::new();
    for candidate in former.into_iter().chain(USUAL) {
        if candidate != name && !candidates.iter().any(|known| known == candidate) {
            candidates.push(candidate.into());
        }
    }
    candidates
}

/// What was done about a default congestion control that nobody serves any more.
#[derive(Debug)]
pub struct Restored {
    name: String,
    /// The default that was to come back; `None` where it was not known.
    former: Option<String>,
    /// The congestion control that is the default now.
    default: String,
    /// Whether it was `name` before.
    changed: bool,
    namespaces: Repaired,
}

impl Restored {
    /// Whether `name` was found to be a default somewhere, or may be one.
    fn was_needed(&self) -> bool {
        let Repaired {
            changed,
            refused,
            hidden: _,
            unfinished,
        } = &self.namespaces;
        self.changed || !changed.is_empty() || !refused.is_empty() || *unfinished
    }

    /// Whether the former default is back, and no other network namespace is left with this one.
    pub fn is_complete(&self) -> bool {
        let is_former = self.former.as_ref() == Some(&self.default);
        (is_former || !self.changed) && self.namespaces.is_complete()
    }
}

impl fmt::Display for Restored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            former,
            default,
            ..
        } = self;
        match former {
            _ if !self.changed => write!(
                f,
                "the default congestion control is {default}, not {name}, and stays so"
            )?,
            Some(former) if former == default => write!(
                f,
                "the default congestion control is {default} again, in the place of {name}"
            )?,
            Some(former) => write!(
                f,
                "the default congestion control is {default} in the place of {name}, as the former \
                 one, {former}, is not available"
            )?,
            None => write!(
                f,
                "the default congestion control is {default} in the place of {name}; the former \
                 one is not known"
            )?,
        }
        if self.namespaces != Repaired::default() {
            write!(f, "; of other network namespaces: {}", self.namespaces)?;
        }
        Ok(())
    }
}

/// Undoes what an agent that was killed has left: a default congestion control that is no longer
/// registered, whatever its name, and what an agent that served `name` remembers beside `socket`.
/// Done at every start.
///
/// # Errors
///
/// Returns an error when the sysctl cannot be read or written.
pub fn heal(name: &str, socket: &Path) -> Result<Vec<Restored>, SysctlError> {
    Place::beside(socket).heal(name, false)
}

/// Does what [`heal`] does, and looks in every network namespace for the default `name`, unless a
/// congestion control of that name is registered: `cc-agent restore`.
///
/// # Errors
///
/// Returns an error when the sysctl cannot be read or written.
pub fn restore(name: &str, socket: &Path) -> Result<Vec<Restored>, SysctlError> {
    Place::beside(socket).heal(name, true)
}

/// The congestion control that sockets of this network namespace have where they choose none,
/// without one called `name`: the present default, or the one that it has replaced, as far as that
/// is known, or else a usual one.
pub fn default_without(name: &str, socket: &Path) -> String {
    Place::beside(socket).default_without(name)
}

/// The default congestion control, changed until it is [restored](Self::restore).
///
/// The former one comes back then, unless another one has been set meanwhile. New sockets must not
/// find an unregistered default, so restore it before the datapath is dropped.
#[derive(Clone, Debug)]
pub struct DefaultCongestionControl(Arc<Mutex<Option<Undo>>>);

/// What is to be undone.
#[derive(Debug)]
struct Undo {
    place: Place,
    name: String,
    former: Option<String>,
}

/// Restores the default when it is dropped.
#[derive(Debug)]
pub struct RestoredOnDrop(pub DefaultCongestionControl);

impl DefaultCongestionControl {
    /// Makes the registered congestion control `name` the default of new sockets in this network
    /// namespace, after writing the former one to a file beside `socket`.
    ///
    /// # Errors
    ///
    /// Returns an error when the file cannot be written, when the sysctl cannot be read or written,
    /// or when the kernel knows no such congestion control.
    pub fn set(name: &str, socket: &Path) -> Result<Self, SysctlError> {
        Self::set_in(Place::beside(socket), name)
    }

    fn set_in(place: Place, name: &str) -> Result<Self, SysctlError> {
        let present = place.default()?;
        // It may already be the default: a dead agent's of the same name.
        let is_left = present == name;
        let former = match is_left {
            true => place.former(name).and_then(|former| former.default),
            false => Some(present),
        };
        let remembered = place.remember(name, former.clone());
        if let Err(error) = remembered.and_then(|()| place.set_default(name)) {
            // Nothing has changed. What a dead agent has left is still to be undone.
            if !is_left {
                let _ = fs::remove_file(place.record(name));
            }
            return Err(error);
        }
        Ok(Self(Arc::new(Mutex::new(Some(Undo {
            place,
            name: name.to_owned(),
            former,
        })))))
    }

    /// The default of the network namespace at present, whoever has set it; `None` where it cannot
    /// be read, or this agent's change of it has been undone.
    pub fn present(&self) -> Option<String> {
        let undo = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        undo.as_ref()?.place.default().ok()
    }

    /// Leaves the default as it is from now on: a successor holds it.
    pub fn leave(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Puts the former default back, if that has not been done. Returns whether that is done now;
    /// if not, it can be tried again.
    pub fn restore(&self) -> bool {
        // Held until it is done, so that a second caller does not go on before.
        let mut undo = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Undo {
            place,
            name,
            former,
        }) = &*undo
        else {
            return true;
        };
        match place.put_back(name, former.clone()) {
            Ok(restored) if restored.is_complete() => tracing::info!("{restored}"),
            Ok(restored) => tracing::warn!("{restored}"),
            Err(error) => {
                tracing::error!(
                    "{name} is still the default congestion control: {error}; set another one with \
                     `sysctl net.ipv4.tcp_congestion_control={}`",
                    USUAL[0]
                );
                return false;
            }
        }
        *undo = None;
        true
    }
}

impl Drop for RestoredOnDrop {
    fn drop(&mut self) {
        self.0.restore();
    }
}

fn hint(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES | libc::EROFS) => {
            " (root or CAP_NET_ADMIN is needed, and a writable /proc/sys; or leave out --default)"
        }
        // tcp_set_default_congestion_control, net/ipv4/tcp_cong.c.
        Some(libc::ENOENT) => {
            " (the kernel knows no such congestion control; \
             net.ipv4.tcp_available_congestion_control lists them)"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn the_former_default_comes_back() {
        let host = Host::with("bbr\n");
        let default = DefaultCongestionControl::set_in(host.place(), "rlcc").expect("sets");
        assert_eq!(host.default(), "rlcc");
        assert!(host.remembers("rlcc"));
        assert_eq!(default.present().as_deref(), Some("rlcc"));
        default.restore();
        assert_eq!(default.present(), None, "it is no longer this agent's");
        assert_eq!(host.default(), "bbr");
        assert!(!host.remembers("rlcc"));
        fs::write(&host.place().sysctl, "cubic").expect("writes");
        default.restore();
        assert_eq!(host.default(), "cubic", "it was restored before");
    }

    #[test]
    fn a_restoration_that_failed_can_be_tried_again() {
        let host = Host::with("bbr");
        let default = DefaultCongestionControl::set_in(host.place(), "rlcc").expect("sets");
        let (sysctl, aside) = (host.place().sysctl, host.0.path().join("aside"));
        fs::rename(&sysctl, &aside).expect("renames");
        assert!(!default.restore());
        assert!(host.remembers("rlcc"));
        fs::rename(&aside, &sysctl).expect("renames");
        assert!(default.restore());
        assert_eq!(host.default(), "bbr");
    }

    #[test]
    fn another_default_that_was_set_meanwhile_stays() {
        let host = Host::with("cubic\n");
        let default = DefaultCongestionControl::set_in(host.place(), "rlcc").expect("sets");
        fs::write(&host.place().sysctl, "bbr\n").expect("writes");
        default.restore();
        assert_eq!(host.default(), "bbr\n");
    }

    #[test]
    fn a_default_that_a_killed_agent_left_is_healed() {
        let host = Host::with("rlcc");
        host.remember_for_dead("rlcc", Some("bbr"));
        let healed = host.place().heal("other", false).expect("heals");
        assert_eq!((healed.len(), host.default()), (1, "bbr".to_owned()));
        let text = healed[0].to_string();
        assert!(
            text.contains("is bbr again, in the place of rlcc"),
            "{text}"
        );
        assert!(!host.remembers("rlcc"));
    }

    #[test]
    fn the_default_of_an_agent_that_lives_is_left_alone() {
        let host = Host::with("bbr");
        let _default = DefaultCongestionControl::set_in(host.place(), "rlcc").expect("sets");
        let healed = host.place().heal("rlcc", true).expect("looks");
        assert!(healed.is_empty());
        assert_eq!(host.default(), "rlcc");
    }

    #[test]
    fn without_a_memory_an_unregistered_default_gives_way_to_a_usual_one() {
        let host = Host::with("rlcc");
        let healed = host.place().heal("other", false).expect("heals");
        assert_eq!(host.default(), "cubic");
        assert!(!healed[0].is_complete());
        let text = healed[0].to_string();
        assert!(text.contains("the former one is not known"), "{text}");
        // One that is registered may have been chosen.
        let host = Host::with("bbr");
        assert!(host.place().heal("other", false).expect("looks").is_empty());
    }

    #[test]
    fn what_is_remembered_of_another_namespace_does_not_count() {
        let host = Host::with("rlcc");
        let elsewhere = Place {
            namespace: 1,
            ..host.place()
        };
        elsewhere
            .remember("rlcc", Some("bbr".into()))
            .expect("writes");
        host.place().heal("rlcc", false).expect("heals");
        assert_eq!(host.default(), "cubic");
    }

    #[test]
    fn a_restart_after_a_kill_keeps_the_choice_of_the_administrator() {
        let host = Host::with("rlcc");
        host.remember_for_dead("rlcc", Some("bbr"));
        // Where the name of a killed agent stays registered, nothing was healed before.
        let default = DefaultCongestionControl::set_in(host.place(), "rlcc").expect("sets");
        default.restore();
        assert_eq!(host.default(), "bbr");
    }

    #[test]
    fn candidates_are_the_former_and_the_usual_ones_each_once() {
        assert_eq!(candidates("rlcc", Some("bbr")), ["bbr", "cubic", "reno"]);
        assert_eq!(candidates("rlcc", Some("reno")), ["reno", "cubic"]);
        assert_eq!(candidates("rlcc", Some("rlcc")), ["cubic", "reno"]);
        assert_eq!(candidates("cubic", None), ["reno"]);
    }

    #[test]
    fn what_others_have_is_the_present_or_the_former_default() {
        let host = Host::with("bbr\n");
        assert_eq!(host.place().default_without("rlcc"), "bbr");
        let _default = DefaultCongestionControl::set_in(host.place(), "rlcc").expect("sets");
        assert_eq!(host.place().default_without("rlcc"), "bbr", "what it was");
        fs::write(&host.place().available, "reno cubic rlcc\n").expect("writes");
        assert_eq!(host.place().default_without("rlcc"), "cubic", "it is gone");
        fs::write(&host.place().available, "reno rlcc\n").expect("writes");
        assert_eq!(host.place().default_without("rlcc"), "reno");
        fs::write(&host.place().sysctl, "nv\n").expect("writes");
        assert_eq!(
            host.place().default_without("rlcc"),
            "reno",
            "it is not registered"
        );
    }

    #[test]
    fn errors_name_the_file_and_the_remedy() {
        let place = Place {
            sysctl: "/nonexistent/tcp_congestion_control".into(),
            ..Host::with("").place()
        };
        let error = DefaultCongestionControl::set_in(place, "rlcc").expect_err("no such file");
        let text = error.to_string();
        assert!(
            text.contains("/nonexistent/tcp_congestion_control"),
            "{text}"
        );
        let refused = SysctlError {
            what: "cannot write".into(),
            file: "/x".into(),
            source: io::Error::from_raw_os_error(libc::EACCES),
        };
        assert!(refused.to_string().contains("CAP_NET_ADMIN"), "{refused}");
    }

    /// A host whose sysctls are ordinary files: any name can be written.
    struct Host(TempDir);

    impl Host {
        fn with(default: &str) -> Self {
            let directory = TempDir::new().expect("a directory for the test");
            let host = Self(directory);
            fs::write(host.place().sysctl, default).expect("writes");
            fs::write(host.place().available, "reno cubic bbr\n").expect("writes");
            host
        }

        fn place(&self) -> Place {
            Place {
                sysctl: self.0.path().join("tcp_congestion_control"),
                available: self.0.path().join("tcp_available_congestion_control"),
                records: self.0.path().to_owned(),
                namespace: namespaces::own().expect("/proc is mounted"),
            }
        }

        fn default(&self) -> String {
            fs::read_to_string(self.place().sysctl).expect("reads")
        }

        fn remembers(&self, name: &str) -> bool {
            self.place().record(name).exists()
        }

        fn remember_for_dead(&self, name: &str, default: Option<&str>) {
            let former = Former {
                default: default.map(Into::into),
                namespace: self.place().namespace,
                agent: Process::current().map(Process::before),
            };
            state_file::write(&self.place().record(name), &former).expect("writes");
        }
    }
}
