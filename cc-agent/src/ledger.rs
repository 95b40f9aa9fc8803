//! The policies that an agent has served, which `rollback` goes back through step by step, also
//! after a restart.
//!
//! The list is the file `NAME.policies` in the directory that systemd names in `STATE_DIRECTORY`,
//! or beside the socket, and the policies' files are in `NAME.policies.d` there, as `SHA256.onnx`.
//! What somebody has rolled back from is marked, and does not come back by itself: neither by a
//! start whose configuration names it, nor by `cc-agent follow`. Beside the socket nothing is
//! written before a command changes the policy, so that agents that come and go leave nothing
//! there.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

use cc_cage::Job;
use cc_core::{
    durable::replace_durably,
    interface::Interface,
    policy::{DEFAULT_POLICY, PolicySpec},
    status::{KnownPolicy, Standing},
};
use nix::unistd::geteuid;
use tracing::warn;

use crate::{
    deploy::{DeployError, LoadedPolicy, PolicyLoader},
    history::now_utc,
    state_file,
};

/// Policies that are known, at most; those that were put into service the longest ago go first.
const MOST: usize = 20;
/// Length of a name or of what put a policy into service, at most, in characters: all of them fit
/// into a state file.
const LONGEST: usize = 1_000;
/// The extension of policy files.
const POLICY: &str = "onnx";

/// The policies that were served, each once, in the order in which they were last put into service.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    known: Vec<KnownPolicy>,
    /// The file of the list; `None` where it is forgotten with the agent.
    list: Option<PathBuf>,
    place: Place,
    /// Whether it is kept from the agent's start on, and not from the first command on.
    from_the_start: bool,
}

/// The directory that policies' files are kept in; `None` where they are not.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place(Option<PathBuf>);

impl Ledger {
    /// The policies that agents which serve `name` have served.
    pub(crate) fn of(name: &str, socket: &Path) -> Self {
        let of_state = state_file::directory();
        let from_the_start = of_state.is_some();
        let beside = || socket.parent().unwrap_or(Path::new("")).to_owned();
        let directory = of_state.unwrap_or_else(beside);
        let list = directory.join(name).with_added_extension("policies");
        let known: Vec<KnownPolicy> = match state_file::read(&list) {
            Ok(found) => found.unwrap_or_default(),
            Err(error) => {
                warn!("{} is not used: {error}", list.display());
                Vec::new()
            }
        };
        Self {
            known,
            place: Place(Some(list.with_added_extension("d"))),
            list: Some(list),
            from_the_start,
        }
    }

    /// All policies that are known, in the order in which they were last put into service.
    pub(crate) fn known(&self) -> Vec<KnownPolicy> {
        self.known.clone()
    }

    /// Where their files are kept.
    pub(crate) fn place(&self) -> Place {
        self.place.clone()
    }

    /// The policy that is to be served instead of the one of this id, because somebody has rolled
    /// back from that; `None` when nobody has, or nothing is known to go back to.
    pub(crate) fn instead_of(&self, id: &str) -> Option<KnownPolicy> {
        let named = self.known.iter().find(|known| known.id() == id)?;
        let rest = self.known.iter().rev();
        let mut others = rest.filter(|known| known.standing != Standing::RolledBack);
        match named.standing {
            Standing::RolledBack => others.next().cloned(),
            _ => None,
        }
    }

    /// The policy that a rollback goes back to: the one before the one in service, or the one that
    /// `to` names, by the beginning of its hash or by its name.
    ///
    /// # Errors
    ///
    /// Returns the reason why there is none, or not a single one.
    pub(crate) fn target(&self, to: Option<&str>) -> Result<KnownPolicy, String> {
        let Some(to) = to else {
            let formers = self.known.iter().rev();
            let mut formers = formers.filter(|known| known.standing == Standing::Former);
            return formers.next().cloned().ok_or_else(|| {
                "there is no former policy to go back to: none was served before, or it has \
                 failed. `cc-agent policies` lists those that are known, and `cc-agent reload \
                 FILE` serves any"
                    .to_owned()
            });
        };
        let is_named = |known: &&KnownPolicy| {
            let sha256 = known.sha256.as_deref();
            known.policy == to || sha256.is_some_and(|sha256| sha256.starts_with(to))
        };
        let named: Vec<&KnownPolicy> = self.known.iter().filter(is_named).collect();
        match named[..] {
            [known] if known.standing == Standing::InService => {
                Err(format!("{} is in service already", known.policy))
            }
            [known] => Ok(known.clone()),
            [] => Err(format!(
                "no policy that was served is named {to}: expected a name or the beginning of a \
                 SHA-256, as `cc-agent policies` lists them"
            )),
            _ => Err(format!(
                "{to} is the beginning of {} policies: name more of the SHA-256",
                named.len()
            )),
        }
    }

    /// Notes the policy that an agent begins with, which was made of `job`.
    pub(crate) fn begin(&mut self, policy: KnownPolicy, job: &Job) {
        let is_kept = self.from_the_start || !self.known.is_empty();
        if is_kept {
            self.place.keep(job, policy.sha256.as_deref());
        }
        self.enter(policy);
        if is_kept {
            self.write();
        }
    }

    /// Notes that a policy is in service from now on. If somebody had rolled back from it, that is
    /// over.
    pub(crate) fn serve(&mut self, policy: KnownPolicy) {
        self.enter(policy);
        self.write();
    }

    fn enter(&mut self, policy: KnownPolicy) {
        self.known.retain(|known| known.id() != policy.id());
        for known in &mut self.known {
            if known.standing == Standing::InService {
                known.standing = Standing::Former;
            }
        }
        self.known.push(policy);
        let surplus = self.known.len().saturating_sub(MOST);
        self.known.drain(..surplus);
    }

    /// Notes that the policy of this id is in service from now on by a rollback: those that were
    /// put into service after it were rolled back from. A policy that had been rolled back from
    /// itself is put into service anew.
    pub(crate) fn roll_back_to(&mut self, id: &str, by: &str) {
        let Some(place) = self.known.iter().position(|known| known.id() == id) else {
            return;
        };
        if self.known[place].standing == Standing::RolledBack {
            let policy = KnownPolicy {
                at: now_utc(),
                by: shortened(by),
                standing: Standing::InService,
                ..self.known[place].clone()
            };
            return self.serve(policy);
        }
        for known in &mut self.known[place + 1..] {
            known.standing = Standing::RolledBack;
        }
        self.known[place].standing = Standing::InService;
        self.write();
    }

    /// Forgets the policy of this id, which has failed.
    pub(crate) fn fail(&mut self, id: &str) {
        self.known.retain(|known| known.id() != id);
        self.write();
    }

    /// Writes the list, and removes the files of policies that are not on it any more. The agent
    /// goes on when that cannot be done.
    fn write(&self) {
        let Some(list) = &self.list else {
            return;
        };
        let written = state_file::write(list, &self.known);
        let written = written.and_then(|()| self.place.remove_others(&self.known));
        if let Err(error) = written {
            warn!(
                "the next start will not know of this: writing {}: {error}",
                list.display()
            );
        }
    }
}

impl Place {
    /// Keeps the file of a policy that was made of `job`, so that it can be loaded again when its
    /// own has changed. A policy without one has no hash. The agent goes on when that fails.
    pub(crate) fn keep(&self, job: &Job, sha256: Option<&str>) {
        let path = sha256.and_then(|sha256| self.file(sha256));
        let Some(path) = path.filter(|path| !path.exists()) else {
            return;
        };
        let bytes = match job.file.is_empty() {
            true => DEFAULT_POLICY,
            false => &job.file[..],
        };
        let kept = self
            .make()
            .and_then(|()| replace_durably(&path, bytes).map_err(io::Error::other));
        if let Err(error) = kept {
            warn!(
                "there is no rollback to {} after a restart: writing {}: {error}",
                job.policy,
                path.display()
            );
            // An empty directory is of no use; one with other policies stays.
            let _ = path.parent().map(fs::remove_dir);
        }
    }

    /// Loads a policy again, for flows of a datapath with the settings of `running`.
    ///
    /// # Errors
    ///
    /// Returns an error when its file is not there any more, or is another one, and when the policy
    /// cannot be loaded.
    pub(crate) fn load(
        &self,
        known: &KnownPolicy,
        loader: &PolicyLoader,
        running: &Interface,
    ) -> Result<LoadedPolicy, DeployError> {
        let named = known.policy.parse();
        let named = named.unwrap_or_else(|_| PolicySpec::of_file(known.policy.clone().into()));
        let (Some(sha256), Some(path)) = (&known.sha256, self.file(known.id())) else {
            // The name is all of it.
            return loader.load_beside(&named, running);
        };
        let kept = PolicySpec::Pinned {
            path,
            sha256: sha256.clone(),
        };
        let shown = match named {
            spec @ (PolicySpec::Onnx(_) | PolicySpec::Pinned { .. }) => spec,
            // The embedded policy, which may be another one by now.
            _ => kept.clone(),
        };
        loader.load_kept(&shown, &kept, running)
    }

    fn file(&self, sha256: &str) -> Option<PathBuf> {
        let directory = self.0.as_ref()?;
        Some(directory.join(sha256).with_added_extension(POLICY))
    }

    /// Makes the directory, unless it is there.
    ///
    /// # Errors
    ///
    /// Returns an error when it cannot be made, and when somebody else has made it.
    fn make(&self) -> io::Result<()> {
        let Some(directory) = &self.0 else {
            return Ok(());
        };
        let made = fs::DirBuilder::new().mode(0o700).create(directory);
        match made {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let found = fs::symlink_metadata(directory)?;
                let own = geteuid().as_raw();
                // The agent may have run as root before, or as the user whose directory it is in.
                let parent = directory.parent().map(fs::symlink_metadata).transpose()?;
                let owners = [Some(own), Some(0), parent.map(|parent| parent.uid())];
                match found.is_dir() && owners.contains(&Some(found.uid())) {
                    true => Ok(()),
                    false => Err(io::Error::new(
                        io::ErrorKind::PermissionDenied,
                        "somebody else has made its directory",
                    )),
                }
            }
            made => made,
        }
    }

    /// Removes the files of all policies but these, and but the newest, which may be that of a
    /// candidate that is being tried.
    fn remove_others(&self, known: &[KnownPolicy]) -> io::Result<()> {
        let Some(directory) = &self.0 else {
            return Ok(());
        };
        if !directory.exists() {
            return Ok(());
        }
        self.make()?;
        let mut others = Vec::new();
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let path = entry.path();
            let is_known =
                (known.iter()).any(|known| self.file(known.id()).as_ref() == Some(&path));
            if path.extension().is_some_and(|it| it == POLICY) && !is_known {
                others.push((entry.metadata()?.modified()?, path));
            }
        }
        others.sort_unstable();
        others.pop();
        others
            .iter()
            .try_for_each(|(_, path)| fs::remove_file(path))
    }
}

/// A policy that is in service from now on, because of `by`.
pub(crate) fn in_service(spec: &PolicySpec, sha256: Option<String>, by: &str) -> KnownPolicy {
    KnownPolicy {
        policy: shortened(&spec.to_string()),
        sha256,
        at: now_utc(),
        by: shortened(by),
        standing: Standing::InService,
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::symlink, time::Duration};

    use cc_core::policy::heuristic_file;
    use tempfile::TempDir;

    use super::*;

    fn known(name: &str) -> KnownPolicy {
        let spec = PolicySpec::Onnx(format!("/p/{name}.onnx").into());
        in_service(&spec, Some(name.repeat(32)), "reload")
    }

    fn served(names: &[&str]) -> Ledger {
        let mut ledger = Ledger::default();
        names.iter().for_each(|name| ledger.serve(known(name)));
        ledger
    }

    /// The first two digits of each policy's hash, with `!` where it is in service and `-` where it
    /// was rolled back from.
    fn list(ledger: &Ledger) -> String {
        let shown = ledger.known.iter().map(|known| {
            let mark = match known.standing {
                Standing::InService => "!",
                Standing::Former => "",
                Standing::RolledBack => "-",
            };
            format!("{}{mark}", &known.id()[..2])
        });
        shown.collect::<Vec<_>>().join(" ")
    }

    fn roll_back(ledger: &mut Ledger, to: Option<&str>) -> Result<(), String> {
        let target = ledger.target(to)?;
        ledger.roll_back_to(target.id(), "rollback");
        Ok(())
    }

    #[test]
    fn each_rollback_goes_back_further() {
        let mut ledger = served(&["aa", "bb", "cc"]);
        assert_eq!(list(&ledger), "aa bb cc!");
        roll_back(&mut ledger, None).expect("bb was before");
        assert_eq!(list(&ledger), "aa bb! cc-");
        roll_back(&mut ledger, None).expect("aa was before");
        assert_eq!(list(&ledger), "aa! bb- cc-");
        let error = roll_back(&mut ledger, None).expect_err("nothing was before");
        assert!(error.contains("there is no former policy"), "{error}");
        // A policy that is put into service again is no longer one that was rolled back from.
        ledger.serve(known("bb"));
        assert_eq!(list(&ledger), "aa cc- bb!");
        roll_back(&mut ledger, None).expect("aa was before");
        assert_eq!(list(&ledger), "aa! cc- bb-");
    }

    #[test]
    fn a_rollback_names_any_policy_that_was_served() {
        let mut ledger = served(&["aa", "bb", "cc"]);
        roll_back(&mut ledger, Some("aaa")).expect("it is known");
        assert_eq!(list(&ledger), "aa! bb- cc-");
        roll_back(&mut ledger, Some("/p/cc.onnx")).expect("forwards as well");
        assert_eq!(list(&ledger), "aa bb- cc!");
        for (to, part) in [
            ("ff", "no policy that was served is named ff"),
            ("cc", "/p/cc.onnx is in service already"),
            ("", "the beginning of 3 policies"),
        ] {
            let error = ledger.target(Some(to)).expect_err(to);
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn what_was_rolled_back_from_is_not_started_with() {
        let mut ledger = served(&["aa", "bb"]);
        let id = |name: &str| name.repeat(32);
        assert_eq!(ledger.instead_of(&id("bb")), None);
        roll_back(&mut ledger, None).expect("aa was before");
        let instead = ledger.instead_of(&id("bb")).expect("it was rolled back");
        assert_eq!(instead.id(), id("aa"));
        assert_eq!(ledger.instead_of(&id("aa")), None);
        assert_eq!(ledger.instead_of(&id("ee")), None, "it is new");
        // One that has failed is neither served instead nor gone back to.
        ledger.fail(&id("aa"));
        assert_eq!(ledger.instead_of(&id("bb")), None);
        ledger.target(None).expect_err("none is left");
    }

    #[test]
    fn policies_are_loaded_again_after_a_restart_whatever_became_of_their_files() {
        let directory = TempDir::new().expect("a directory for the test");
        let at = |name: &str| directory.path().join(name);
        let loader = PolicyLoader {
            interface: Interface::default(),
            serving: None,
            seed: 0,
            added_delay: Duration::ZERO,
            batch_budget: Some(Duration::from_secs(60)),
            caged: false,
        };
        let mut ledger = Ledger::of("rlcc", &at("rlcc.sock"));
        fs::write(at("a.onnx"), heuristic_file()).expect("writes");
        for spec in [
            PolicySpec::Fixed(20),
            PolicySpec::Onnx(at("a.onnx")),
            PolicySpec::Default,
        ] {
            let loaded = loader.load(&spec).expect("it is one");
            let sha256 = loaded.sha256();
            ledger.place().keep(&loaded.job, sha256.as_deref());
            ledger.serve(in_service(&spec, sha256, "reload"));
        }
        fs::write(at("a.onnx"), "another file").expect("writes");
        let mut ledger = Ledger::of("rlcc", &at("rlcc.sock"));
        let place = ledger.place();
        let load = |known: &KnownPolicy| place.load(known, &loader, &Interface::default());
        let of_embedded = loader.load(&PolicySpec::Default).expect("it is one");
        let embedded = place.load(&ledger.known()[2], &loader, of_embedded.interface());
        let embedded = embedded.expect("its file was kept");
        assert_eq!(Some(embedded.name), ledger.known()[2].sha256);
        for expected in [format!("{}: ", at("a.onnx").display()), "fixed:20".into()] {
            let target = ledger.target(None).expect("there is one before");
            let loaded = load(&target).expect("it was kept");
            assert!(loaded.text.starts_with(&expected), "{}", loaded.text);
            assert_eq!(loaded.name, target.id());
            ledger.roll_back_to(target.id(), "rollback");
        }
        // A file that somebody has changed is refused.
        let of_file = ledger.known()[1].clone();
        let kept = place.file(of_file.id()).expect("it has a place");
        fs::write(kept, "changed").expect("writes");
        load(&of_file).err().expect("it is another file");
    }

    #[test]
    fn beside_a_socket_nothing_is_written_before_a_command() {
        let directory = TempDir::new().expect("a directory for the test");
        let socket = directory.path().join("rlcc.sock");
        let count = || fs::read_dir(directory.path()).expect("it is there").count();
        let job = |spec: &PolicySpec| Job {
            policy: spec.clone(),
            file: Default::default(),
            interface: Interface::default(),
            serving: None,
            seed: 0,
            added_delay: Duration::ZERO,
            batch_budget: None,
        };
        let mut ledger = Ledger::of("rlcc", &socket);
        ledger.from_the_start = false;
        let fixed = PolicySpec::Fixed(20);
        ledger.begin(in_service(&fixed, None, "start"), &job(&fixed));
        assert_eq!((list(&ledger), count()), ("fi!".into(), 0));
        ledger.serve(known("aa"));
        // The list; there is no file yet for the directory.
        assert_eq!(count(), 1);
        // From then on the starts are known as well.
        let mut ledger = Ledger::of("rlcc", &socket);
        let random = PolicySpec::Random;
        ledger.begin(in_service(&random, None, "start"), &job(&random));
        assert_eq!(list(&Ledger::of("rlcc", &socket)), "fi aa ra!");
    }

    #[test]
    fn files_of_policies_that_are_not_known_any_more_are_removed() {
        let directory = TempDir::new().expect("a directory for the test");
        let mut ledger = Ledger::of("rlcc", &directory.path().join("rlcc.sock"));
        let place = ledger.place();
        for number in 0..2 * MOST {
            let policy = known(&format!("{number:02}"));
            place.make().expect("makes");
            let file = place.file(policy.id()).expect("it has a place");
            fs::write(file, "a policy").expect("writes");
            ledger.serve(policy);
        }
        assert_eq!(ledger.known().len(), MOST);
        let files = fs::read_dir(directory.path().join("rlcc.policies.d")).expect("it is there");
        // One more than those: it might be a candidate's.
        assert_eq!(files.count(), MOST + 1);
    }

    #[test]
    fn a_directory_that_somebody_else_has_put_there_is_not_written_to() {
        let directory = TempDir::new().expect("a directory for the test");
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("elsewhere")).expect("creates");
        fs::write(at("elsewhere/precious.onnx"), "precious").expect("writes");
        fs::write(at("elsewhere/precious-too.onnx"), "precious").expect("writes");
        symlink(at("elsewhere"), at("rlcc.policies.d")).expect("links");
        let mut ledger = Ledger::of("rlcc", &at("rlcc.sock"));
        ledger.place().make().expect_err("it is a link");
        ledger.serve(known("aa"));
        assert_eq!(
            fs::read_dir(at("elsewhere")).expect("it is there").count(),
            2
        );
        assert_eq!(list(&Ledger::of("rlcc", &at("rlcc.sock"))), "aa!");
    }
}
