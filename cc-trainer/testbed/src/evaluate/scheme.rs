//! Schemes: congestion controls of the kernel or of the simulator, and policies that an agent
//! serves.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use cc_core::{
    interface::Interface,
    policy::{ActionSelection, DEFAULT_POLICY, FileError, PolicyFile, PolicySpec, SpecError},
};

use crate::summary::Platform;
use cc_sim::sim;

/// List of the running kernel's congestion controls (Documentation/networking/ip-sysctl.rst).
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";

/// Name of the scheme whose policy is that of `--policy`.
const LEARNED: &str = "rlcc";

/// Ending of a scheme's name that paces a policy without a file as the policy of `--policy` is.
const PACED: &str = ":paced";

/// Longest name of a scheme in bytes, as it becomes part of file names.
const NAME_MAX: usize = 40;

/// A congestion control or policy under test, with the name used in results.
#[derive(Clone, Debug, PartialEq)]
pub struct Scheme {
    /// The name as `--schemes` gives it; for `NAME=FILE.onnx`, the part before the `=`.
    pub name: String,
    /// Congestion control behind the name.
    pub control: Control,
}

/// Controller of the cwnd of a scheme's flows.
#[derive(Clone, Debug, PartialEq)]
pub enum Control {
    /// The congestion control of the scheme's name, in the kernel or in the simulator.
    Named,
    /// A policy, which an agent serves.
    Policy(ServedPolicy),
}

/// A policy, and how an agent serves it.
#[derive(Clone, Debug, PartialEq)]
pub struct ServedPolicy {
    /// The policy, as `cc-agent run --policy` takes it.
    pub spec: PolicySpec,
    /// How actions are selected; `None` is what the policy file says.
    pub serving: Option<ActionSelection>,
    /// SHA-256 of the policy file in hexadecimal; `None` for a policy without a file.
    pub sha256: Option<String>,
    /// Pacing gain of a policy without a file ([`Interface::pacing_gain`]), whose flows then send
    /// single segments. `None` leaves them unpaced; a policy file brings its own.
    pub pacing_gain: Option<f32>,
}

impl ServedPolicy {
    /// The interface of the policy if it has no file; a file brings its own.
    pub fn interface(&self) -> Interface {
        Interface {
            pacing_gain: self.pacing_gain,
            ..Interface::default()
        }
    }

    /// The policy in words: its file or name, and its pacing where a scheme's name asks for it.
    pub fn source(&self) -> String {
        match self.pacing_gain {
            None => self.spec.to_string(),
            Some(gain) => format!("{}, paced by {gain}", self.spec),
        }
    }
}

/// The congestion controls that a platform offers by name: how to list them, and how to load one
/// that is not listed.
#[derive(Clone, Copy, Debug)]
pub struct Controls {
    available: fn() -> Vec<String>,
    load: fn(&str),
    /// Text before the list of available names in an error message, and the remedy after it.
    words: (&'static str, &'static str),
}

impl Controls {
    /// Congestion controls of the running kernel; a missing one may be a module that can be loaded.
    pub const HOST: Self = Self {
        available,
        load: modprobe,
        words: ("this kernel has", " (`modprobe tcp_NAME` may add more)"),
    };

    /// Congestion controls that the simulator implements.
    pub const SIMULATOR: Self = Self {
        available: simulated,
        load: |_| {},
        words: ("the simulator has", ""),
    };

    /// Congestion controls that a platform offers.
    pub fn of(platform: Platform) -> Self {
        match platform {
            Platform::Kernel => Self::HOST,
            Platform::Sim => Self::SIMULATOR,
        }
    }

    fn have(self, name: &str) -> bool {
        let listed = || (self.available)().iter().any(|known| known == name);
        listed() || {
            (self.load)(name);
            listed()
        }
    }

    fn listed(self) -> String {
        let (whose, remedy) = self.words;
        format!("{whose} {}{remedy}", (self.available)().join(", "))
    }
}

impl Scheme {
    /// Parses one scheme: one of `controls`, `rlcc` (the policy `policy`), `random`, `heuristic`,
    /// `keep`, `fixed:N`, or `NAME=FILE.onnx`. Policy files are read and validated; they are served
    /// as `serving` says.
    ///
    /// `random:paced`, `heuristic:paced` and `fixed:N:paced` are paced as `policy` is, or as the
    /// embedded policy where `policy` has no file. Compared with the same scheme without pacing and
    /// with `rlcc`, they tell what pacing does apart from what the policy has learned.
    ///
    /// # Errors
    ///
    /// Returns an error when there is no such scheme, or when its policy file is refused.
    pub fn parse(
        word: &str,
        policy: &PolicySpec,
        serving: Option<ActionSelection>,
        controls: Controls,
    ) -> Result<Self, SchemeError> {
        let plain = word.strip_suffix(PACED).unwrap_or(word);
        let is_fileless = |word: &str| {
            word.starts_with("fixed:") || ["random", "heuristic", "keep"].contains(&word)
        };
        let (name, spec) = match word.split_once('=') {
            Some((name, file)) => (name, Some(labelled(word, name, file)?)),
            None if word == LEARNED => (word, Some(policy.clone())),
            None if is_fileless(plain) => (word, Some(plain.parse()?)),
            None => (word, None),
        };
        let control = match spec {
            Some(spec) => {
                let paced = is_fileless(plain) && plain != word;
                let gain = paced.then(|| pacing_of(policy)).transpose()?;
                Control::policy(spec, serving, gain)?
            }
            None if is_control_name(word) && controls.have(word) => Control::Named,
            None => {
                return Err(SchemeError::Unknown {
                    found: word.to_owned(),
                    available: controls.listed(),
                });
            }
        };
        Ok(Self {
            name: name.to_owned(),
            control,
        })
    }

    /// The policy that controls the scheme's flows; `None` for a congestion control by name.
    pub fn policy(&self) -> Option<&ServedPolicy> {
        match &self.control {
            Control::Named => None,
            Control::Policy(policy) => Some(policy),
        }
    }
}

impl Control {
    fn policy(
        spec: PolicySpec,
        serving: Option<ActionSelection>,
        pacing_gain: Option<f32>,
    ) -> Result<Self, SchemeError> {
        let sha256 = match &spec {
            PolicySpec::Pinned { sha256, .. } => Some(sha256.clone()),
            spec => file_of(spec)?.map(|file| file.summary().sha256.clone()),
        };
        Ok(Self::Policy(ServedPolicy {
            spec,
            serving,
            sha256,
            pacing_gain,
        }))
    }
}

/// Parses a list of schemes that are separated by commas.
///
/// # Errors
///
/// Returns an error when a scheme is unknown or named twice, or when the list is empty.
pub fn parse(
    list: &str,
    policy: &PolicySpec,
    serving: Option<ActionSelection>,
    controls: Controls,
) -> Result<Vec<Scheme>, SchemeError> {
    let mut schemes: Vec<Scheme> = Vec::new();
    let words = list
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty());
    for word in words {
        let scheme = Scheme::parse(word, policy, serving, controls)?;
        if schemes.iter().any(|known| known.name == scheme.name) {
            return Err(SchemeError::Twice { name: scheme.name });
        }
        schemes.push(scheme);
    }
    match schemes.is_empty() {
        true => Err(SchemeError::Empty),
        false => Ok(schemes),
    }
}

/// Errors in a scheme or in a list of schemes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SchemeError {
    /// The list names no scheme.
    #[error("no scheme is named; give some, as in `--schemes rlcc,cubic`")]
    Empty,
    /// Two schemes have the same name.
    #[error(
        "the scheme `{name}` is named twice; give another policy a name of its own, as in \
         `{name}-2=FILE.onnx`"
    )]
    Twice {
        /// Name that both schemes have.
        name: String,
    },
    /// Neither the platform nor the agent offers a scheme of this name.
    #[error(
        "no scheme is called `{found}`; {available}, and policies are `rlcc` (of --policy), \
         `random`, `heuristic`, `keep`, `fixed:N` (each also with `:paced`) and `NAME=FILE.onnx`"
    )]
    Unknown {
        /// The scheme that was asked for.
        found: String,
        /// Names that are available, as a sentence.
        available: String,
    },
    /// The name in `NAME=FILE.onnx` cannot be part of a file name.
    #[error(
        "`{found}`: expected NAME=FILE.onnx, where NAME has 1 to {NAME_MAX} letters, digits, `-` \
         or `_`"
    )]
    Label {
        /// The scheme that was asked for.
        found: String,
    },
    /// A scheme is to be paced like a policy that is not paced.
    #[error(
        "`:paced` means paced as the policy of --policy is, but `{policy}` is not paced; give a \
         policy whose file has a pacing gain, as `default` has"
    )]
    Unpaced {
        /// The policy of `--policy`, which is not paced.
        policy: String,
    },
    /// The description of a policy cannot be parsed.
    #[error(transparent)]
    Policy(#[from] SpecError),
    /// A policy file is invalid.
    #[error("{}: policy file refused: {source}", path.display())]
    File {
        /// Path of the policy file.
        path: PathBuf,
        /// Reason why it is refused.
        source: FileError,
    },
}

fn labelled(word: &str, name: &str, file: &str) -> Result<PolicySpec, SchemeError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(plain) {
        return Err(SchemeError::Label {
            found: word.to_owned(),
        });
    }
    Ok(file.parse()?)
}

/// Reads and validates the file of a policy; `None` for a policy without a file.
fn file_of(spec: &PolicySpec) -> Result<Option<PolicyFile>, SchemeError> {
    let (path, file) = match spec {
        PolicySpec::Default => (
            Path::new("the embedded policy"),
            PolicyFile::parse(DEFAULT_POLICY),
        ),
        PolicySpec::Onnx(path) | PolicySpec::Pinned { path, .. } => {
            (path.as_path(), PolicyFile::read(path))
        }
        _ => return Ok(None),
    };
    file.map(Some).map_err(|source| SchemeError::File {
        path: path.to_owned(),
        source,
    })
}

/// Pacing gain of `policy`, or of the embedded policy where `policy` has no file.
fn pacing_of(policy: &PolicySpec) -> Result<f32, SchemeError> {
    let file = match file_of(policy)? {
        None => file_of(&PolicySpec::Default)?,
        file => file,
    };
    let gain = file.and_then(|file| file.meta().interface.pacing_gain);
    gain.ok_or_else(|| SchemeError::Unpaced {
        policy: policy.to_string(),
    })
}

/// Whether the kernel accepts a congestion control of this name. `TCP_CA_NAME_MAX` is 16, the
/// terminating zero included.
fn is_control_name(word: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    (1..16).contains(&word.len()) && word.bytes().all(plain)
}

/// Congestion controls that the kernel has loaded; empty when it does not list them.
pub(super) fn available() -> Vec<String> {
    let list = fs::read_to_string(AVAILABLE).unwrap_or_default();
    list.split_whitespace().map(str::to_owned).collect()
}

fn simulated() -> Vec<String> {
    sim::Control::NAMES.map(str::to_owned).to_vec()
}

fn modprobe(name: &str) {
    // Without such a module, without modprobe or without the privilege, the list of available names
    // stays as it is, and the caller reports that.
    let _ = Command::new("modprobe")
        .arg("--quiet")
        .arg(format!("tcp_{name}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: Controls = Controls {
        available: || vec!["reno".into(), "cubic".into()],
        load: |_| {},
        words: ("this kernel has", ""),
    };

    fn parsed(list: &str) -> Result<Vec<Scheme>, String> {
        parse(list, &PolicySpec::Fixed(7), None, KERNEL).map_err(|error| error.to_string())
    }

    #[test]
    fn every_kind_of_scheme_is_parsed() {
        let schemes = parsed("cubic, rlcc,random,fixed:10,heuristic").expect("all exist");
        let found: Vec<_> = schemes
            .iter()
            .map(|scheme| match &scheme.control {
                Control::Named => format!("{}: by name", scheme.name),
                Control::Policy(policy) => format!("{}: {}", scheme.name, policy.spec),
            })
            .collect();
        let expected = [
            "cubic: by name",
            "rlcc: fixed:7",
            "random: random",
            "fixed:10: fixed:10",
            "heuristic: heuristic",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn policies_without_a_file_are_paced_on_demand() {
        let embedded = PolicyFile::parse(DEFAULT_POLICY).expect("it is ours");
        let gain = embedded.meta().interface.pacing_gain;
        assert!(gain.is_some(), "the embedded policy is paced");
        let schemes =
            parsed("heuristic,heuristic:paced,random:paced,fixed:140:paced").expect("all exist");
        let found: Vec<_> = schemes
            .iter()
            .map(|scheme| {
                let policy = scheme.policy().expect("all are policies");
                (
                    scheme.name.as_str(),
                    policy.spec.to_string(),
                    policy.interface().pacing_gain,
                )
            })
            .collect();
        let expected = [
            ("heuristic", "heuristic", None),
            ("heuristic:paced", "heuristic", gain),
            ("random:paced", "random", gain),
            ("fixed:140:paced", "fixed:140", gain),
        ];
        assert_eq!(
            found,
            expected.map(|(name, spec, gain)| (name, spec.into(), gain))
        );
        // A paced flow sends single segments.
        let settings = schemes[1].policy().expect("a policy").interface();
        assert_eq!(settings.datapath_settings().min_burst(), 1);
    }

    #[test]
    fn nothing_can_be_paced_like_a_policy_that_is_not() {
        let file = tempfile::Builder::new()
            .suffix(".onnx")
            .tempfile()
            .expect("a scratch file");
        fs::write(file.path(), cc_core::policy::heuristic_file()).expect("it is ours");
        let unpaced = PolicySpec::Onnx(file.path().to_owned());
        let error = Scheme::parse("random:paced", &unpaced, None, KERNEL).expect_err("no pacing");
        assert!(error.to_string().contains("is not paced"), "{error}");
        assert!(Scheme::parse("random", &unpaced, None, KERNEL).is_ok());
    }

    #[test]
    fn a_policy_file_has_a_name_and_a_digest() {
        let file = tempfile::Builder::new()
            .suffix(".onnx")
            .tempfile()
            .expect("a scratch file");
        fs::write(file.path(), DEFAULT_POLICY).expect("it is ours");
        let word = format!("mine={}", file.path().display());
        let mine = Scheme::parse(&word, &PolicySpec::Default, None, KERNEL).expect("a policy");
        let learned = Scheme::parse("rlcc", &PolicySpec::Default, None, KERNEL).expect("a policy");
        assert_eq!(
            (mine.name.as_str(), learned.name.as_str()),
            ("mine", "rlcc")
        );
        let sha256 = |scheme: &Scheme| {
            let policy = scheme.policy().expect("it is a policy");
            policy.sha256.clone().expect("it is a file")
        };
        assert_eq!(sha256(&mine), sha256(&learned));
        fs::write(file.path(), b"no policy").expect("it is ours");
        let error = parsed(&word).expect_err("it is no policy");
        assert!(
            error.contains(&file.path().display().to_string()),
            "{error}"
        );
    }

    #[test]
    fn errors_list_the_available_schemes() {
        let refused = [
            ("vegas", "this kernel has reno, cubic"),
            ("../cubic", "this kernel has reno, cubic"),
            ("fixed:0", "at least 1 segment"),
            ("fixed:0:paced", "at least 1 segment"),
            ("cubic:paced", "no scheme is called `cubic:paced`"),
            ("rlcc:paced", "no scheme is called `rlcc:paced`"),
            ("a/b=x.onnx", "NAME=FILE.onnx"),
            ("mine=x.txt", "ends in .onnx"),
            ("mine=/nowhere/x.onnx", "/nowhere/x.onnx"),
            ("cubic,cubic", "named twice"),
            (" ,", "no scheme is named"),
        ];
        for (list, expected) in refused {
            let error = parsed(list).expect_err(list);
            assert!(error.contains(expected), "{list}: {error}");
        }
    }

    #[test]
    fn a_missing_control_is_loaded_as_a_module() {
        use std::cell::Cell;
        thread_local!(static LOADED: Cell<bool> = const { Cell::new(false) });
        let kernel = Controls {
            available: || match LOADED.get() {
                true => vec!["reno".into(), "vegas".into()],
                false => vec!["reno".into()],
            },
            load: |name| LOADED.set(name == "vegas"),
            words: ("this kernel has", ""),
        };
        assert!(Scheme::parse("vegas", &PolicySpec::Default, None, kernel).is_ok());
    }
}
