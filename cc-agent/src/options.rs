//! The options of `cc-agent run` and of what `observe` shares with it: on the command line, and as
//! keys of a TOML file.

use std::{
    path::{Path, PathBuf},
    str::FromStr,
};

use cc_ebpf::{AckFilter, Startup};
use clap::Args;
use serde::{Deserialize, Deserializer, de::Error as _};

use crate::{scope::ScopeOptions, settings_error::SettingsError};
use cc_core::{
    action::ActionSpace,
    canary::CanaryBy,
    ownership::exposure_to_root,
    policy::{ActionSelection, PolicySpec},
    regular_file,
    status::default_socket,
};

/// Name of the congestion control, unless `--name` says otherwise.
pub(crate) const DEFAULT_NAME: &str = "rlcc";
/// Size limit of a configuration file, bytes.
const MAX_CONFIGURATION: u64 = 1 << 20;

/// Options of `cc-agent run`. Each is also a key of the file that `--config` names, with `_` for
/// `-`. Options of the command line take precedence.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct RunOptions {
    /// The policy and its interface.
    #[command(flatten)]
    #[serde(skip)]
    pub policy: PolicyOptions,

    /// The policy server, where --policy names one.
    #[command(flatten)]
    #[serde(skip)]
    pub remote: RemoteOptions,

    /// How an action is selected from a policy file's distribution: `greedy`, `softmax`, or
    /// `softmax:T` at temperature T [default: as the file says].
    #[arg(long, value_name = "HOW")]
    #[serde(deserialize_with = "from_text")]
    pub serving: Option<ActionSelection>,

    /// Seed of all random numbers [default: 0].
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Share of the flows, paths or hosts that the policy of --candidate decides for, in percent: 0
    /// to 100.
    #[arg(long, value_name = "PERCENT")]
    pub canary: Option<f64>,

    /// Candidate policy, served to the share that --canary sets. It is withdrawn when its flows do
    /// worse than those of --policy, or when these do worse beside them.
    #[arg(long, value_name = "POLICY")]
    #[serde(deserialize_with = "from_text")]
    pub candidate: Option<PolicySpec>,

    /// What the --candidate is compared by: blocks of `time`, `path`s (remote prefixes) or remote
    /// `host`s [default: time].
    #[arg(long, value_name = "HOW")]
    #[serde(deserialize_with = "from_text")]
    pub canary_by: Option<CanaryBy>,

    /// Length of the blocks of time that candidates are compared by, in s [default: 10].
    #[arg(long, value_name = "SECS")]
    pub canary_block: Option<f64>,

    /// Pairs of blocks, or paths or hosts for each policy, that are needed before a candidate is
    /// found worse or not worse [default: 10].
    #[arg(long, value_name = "N")]
    pub canary_units: Option<u64>,

    /// Name under which the congestion control is registered [default: rlcc].
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,

    /// Past decisions in an observation; a policy file sets its own [default: 20].
    #[arg(long, value_name = "K")]
    pub history: Option<usize>,

    /// Smallest cwnd that a decision may set, in segments [default: 2].
    #[arg(long, value_name = "N")]
    pub cwnd_min: Option<u32>,

    /// Largest cwnd of any flow, in segments; the bound of a policy file applies too
    /// [default: 2000].
    #[arg(long, value_name = "N")]
    pub cwnd_max: Option<u32>,

    /// Pace at this multiple of cwnd / RTT; a policy file sets its own [default: unpaced].
    #[arg(long, value_name = "X")]
    pub pacing_gain: Option<f32>,

    /// What a flow does until its first decision: `slow-start`, or `constant` at the initial cwnd
    /// [default: slow-start].
    #[arg(long, value_name = "HOW")]
    #[serde(deserialize_with = "from_text")]
    pub startup: Option<StartupOption>,

    /// Flows fall back to Reno when the agent has sent no heartbeat for this long, in ms
    /// [default: 1000].
    #[arg(long, value_name = "MS")]
    pub heartbeat_ms: Option<u32>,

    /// Flows that can be served at once; further flows run on the Reno fallback [default: 16384].
    #[arg(long, value_name = "N")]
    pub slots: Option<u32>,

    /// Record single ACKs of `all` flows, of `slot:N`, of `port:N`, or of `one-in:N` flows
    /// [default: off].
    #[arg(long, value_name = "WHICH")]
    #[serde(deserialize_with = "from_text")]
    pub per_ack: Option<AckFilterOption>,

    /// CSV file for the ACKs that --per-ack records [default: acks.csv].
    #[arg(long, value_name = "FILE")]
    pub per_ack_file: Option<PathBuf>,

    /// The recording of windows and decisions.
    #[command(flatten)]
    #[serde(skip)]
    pub recording: RecordingOptions,

    /// Delay every inference by this much, in ms: for the study of late decisions [default: 0].
    #[arg(long, value_name = "MS")]
    pub added_delay_ms: Option<u64>,

    /// Refuse policies whose batches take longer than this in the try-out, in ms [default: a
    /// quarter of the window].
    #[arg(long, value_name = "MS")]
    pub batch_budget_ms: Option<f64>,

    /// Run policies within the agent rather than in confined processes: for measurements and
    /// debugging. A policy that hangs, crashes or takes all memory then does so to the agent.
    #[arg(long, num_args = 0..=1, default_missing_value = "true")]
    pub no_cage: Option<bool>,

    /// Niceness of the agent, -20 to 19. It needs little processor time but needs it soon
    /// [default: -15].
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub nice: Option<i32>,

    /// The sockets that are served.
    #[command(flatten)]
    #[serde(skip)]
    pub scope: ScopeOptions,

    /// Take over from a running agent of the same name, if there is one, without a gap: the name
    /// stays registered, and its flows go on. That agent ends; where it cannot be taken over from,
    /// it goes on serving, and this one does not start (docs/deployment.md).
    #[arg(long, num_args = 0..=1, default_missing_value = "true")]
    pub takeover: Option<bool>,

    /// Socket for `status`, `top` and commands [default: /run/cc-agent/NAME.sock].
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// Group, by name or number, whose members may connect to the socket and read the status.
    /// Commands are for root and the agent's own user in any case [default: the agent's group].
    #[arg(long, value_name = "GROUP")]
    pub socket_group: Option<String>,

    /// Keep all capabilities after the start, instead of only those that --default and --cgroup
    /// need.
    #[arg(long, num_args = 0..=1, default_missing_value = "true")]
    pub keep_capabilities: Option<bool>,

    /// Stop after this many seconds [default: never].
    #[arg(long, value_name = "SECS")]
    pub duration: Option<f64>,

    /// Print log lines instead of the live view, also on a terminal.
    #[arg(long, num_args = 0..=1, default_missing_value = "true")]
    pub plain: Option<bool>,
}

/// The policy and the parts of its interface that `run` and `observe` share.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PolicyOptions {
    /// Policy: `default` (embedded), a FILE.onnx, `fixed:N` (a cwnd of N segments), `keep` (as it
    /// is), `random` (any action), `heuristic` (a hand-written rule), or grpcs://HOST:PORT (a policy
    /// server). `observe` runs no policy and only uses the policy's window length, action space and
    /// reward.
    #[arg(long, value_name = "POLICY")]
    #[serde(deserialize_with = "from_text")]
    pub policy: Option<PolicySpec>,

    /// SHA-256 that the file of --policy must have, in hexadecimal. An agent that runs as root
    /// serves a file that other users could change only with it.
    #[arg(long, value_name = "HEX")]
    pub policy_sha256: Option<String>,

    /// Length of an observation window in ms; a policy file sets its own [default: 100].
    #[arg(long, value_name = "MS")]
    pub window_ms: Option<u32>,

    /// Action space, for example `0,/2,-10,+10,*2`; a policy file sets its own.
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    #[serde(deserialize_with = "from_text")]
    pub actions: Option<ActionSpace>,
}

/// How a policy server is reached, and who decides without it.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct RemoteOptions {
    /// Certificates, in PEM, of the authorities that may sign that of the policy server which
    /// --policy grpcs://HOST:PORT names.
    #[arg(long, value_name = "FILE")]
    pub remote_ca: Option<PathBuf>,

    /// This agent's certificate for the policy server, in PEM.
    #[arg(long, value_name = "FILE")]
    pub remote_cert: Option<PathBuf>,

    /// The private key of --remote-cert, in PEM.
    #[arg(long, value_name = "FILE")]
    pub remote_key: Option<PathBuf>,

    /// Policy that decides where the policy server is late or gone. A file must have the interface
    /// of the server's policy [default: the embedded policy if it has that interface, otherwise
    /// `heuristic`].
    #[arg(long, value_name = "POLICY")]
    #[serde(deserialize_with = "from_text")]
    pub local_policy: Option<PolicySpec>,

    /// How long an answer of the policy server is waited for, from the end of its window, in ms.
    /// Until then the flow keeps its cwnd; then the local policy decides. For policies that were
    /// trained to decide so late [default: the length of a window].
    #[arg(long, value_name = "MS")]
    pub patience_ms: Option<u64>,
}

/// Whether and how windows are recorded as Parquet.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct RecordingOptions {
    /// Record the windows of every flow, and the decisions on them, as Parquet files in this
    /// directory [default: no recording].
    #[arg(long, value_name = "DIR")]
    pub record: Option<PathBuf>,

    /// Form of addresses in recordings: `absent`, `hashed:KEYFILE` (a keyed hash, so that equal
    /// addresses can be recognised; the key has at least 16 bytes), or `plain` [default: absent].
    #[arg(long, value_name = "HOW")]
    #[serde(deserialize_with = "from_text")]
    pub record_addresses: Option<AddressesOption>,

    /// Complete a recorded file at this size, in MB [default: 64].
    #[arg(long, value_name = "MB")]
    pub record_file_mb: Option<u64>,

    /// Complete a recorded file at this age, in s [default: 3600].
    #[arg(long, value_name = "SECS")]
    pub record_file_s: Option<u64>,

    /// Write each row to the disk after this time at the latest, in s. A crash loses at most the
    /// rows of this time [default: 30].
    #[arg(long, value_name = "SECS")]
    pub record_delay_s: Option<u64>,

    /// Remove the oldest recordings when the directory exceeds this size, in MB [default: 10000].
    #[arg(long, value_name = "MB")]
    pub record_limit_mb: Option<u64>,
}

/// Builds a struct whose every field is the first value's, or the second's where that is `None`.
/// A field that is missing in the list is a compile error.
macro_rules! first_of {
    ($first:ident, $second:ident: $($field:ident),+ $(,)?) => {
        Self { $($field: $first.$field.or($second.$field)),+ }
    };
}

impl RunOptions {
    /// Reads options from a TOML file.
    ///
    /// # Errors
    ///
    /// Returns an error when the file cannot be read, when this process is root and another user
    /// could change the file, and when it is not TOML, has a key that is not an option,
    /// or a value that the option does not take.
    pub fn read(path: &Path) -> Result<Self, SettingsError> {
        let read = |source| SettingsError::Read {
            path: path.to_owned(),
            source,
        };
        if let Some(exposure) = exposure_to_root(path).map_err(read)? {
            return Err(SettingsError::Exposed { exposure });
        }
        let text = regular_file::read_to_string(path, MAX_CONFIGURATION).map_err(read)?;
        Self::parse(&text).map_err(|source| SettingsError::Parse {
            path: path.to_owned(),
            source: Box::new(source),
        })
    }

    /// Parses the text of a TOML file.
    pub(crate) fn parse(text: &str) -> Result<Self, toml::de::Error> {
        let table: toml::Table = toml::from_str(text)?;
        let command = Self::augment_args(clap::Command::new("run"));
        let known: Vec<&str> = command
            .get_arguments()
            .map(|a| a.get_id().as_str())
            .collect();
        if let Some(key) = table.keys().find(|key| !known.contains(&key.as_str())) {
            let known = known.join("`, `");
            return Err(toml::de::Error::custom(format!(
                "unknown field `{key}`, expected one of `{known}`"
            )));
        }
        // Each group reads its own keys of the one table. `#[serde(flatten)]` would do so too, but
        // its errors would name neither the key nor the line.
        Ok(Self {
            policy: toml::from_str(text)?,
            remote: toml::from_str(text)?,
            scope: toml::from_str(text)?,
            recording: toml::from_str(text)?,
            ..toml::from_str(text)?
        })
    }

    /// Path of the status socket.
    pub fn socket(&self) -> PathBuf {
        let name = self.name.as_deref().unwrap_or(DEFAULT_NAME);
        self.socket.clone().unwrap_or_else(|| default_socket(name))
    }

    /// These options, with those of `other` where these are not given.
    pub fn or(self, other: Self) -> Self {
        first_of!(
            self, other: policy, remote, serving, seed, canary, candidate, canary_by, canary_block,
            canary_units, name, history, cwnd_min, cwnd_max, pacing_gain, startup, heartbeat_ms,
            slots, per_ack, per_ack_file, recording, added_delay_ms, batch_budget_ms, no_cage, nice,
            scope, takeover, socket, socket_group, keep_capabilities, duration, plain,
        )
    }
}

impl PolicyOptions {
    fn or(self, other: Self) -> Self {
        first_of!(self, other: policy, policy_sha256, window_ms, actions)
    }
}

impl RemoteOptions {
    fn or(self, other: Self) -> Self {
        first_of!(self, other: remote_ca, remote_cert, remote_key, local_policy, patience_ms)
    }
}

impl ScopeOptions {
    fn or(self, other: Self) -> Self {
        first_of!(
            self, other: cgroup, cgroups_by_command, default, default_local, only_to, never_to,
            only_via, never_via, restricted,
        )
    }
}

impl RecordingOptions {
    fn or(self, other: Self) -> Self {
        first_of!(
            self, other: record, record_addresses, record_file_mb, record_file_s, record_delay_s,
            record_limit_mb,
        )
    }
}

/// [`Startup`] as it is written in options: `slow-start` or `constant`.
#[derive(Clone, Debug, PartialEq)]
pub struct StartupOption(pub Startup);

impl FromStr for StartupOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "slow-start" => Ok(Self(Startup::SlowStart)),
            "constant" => Ok(Self(Startup::Constant)),
            _ => Err(format!("`{text}`: expected `slow-start` or `constant`")),
        }
    }
}

/// [`AckFilter`] as it is written in options: `off`, `all`, `slot:N`, `port:N` or `one-in:N`.
#[derive(Clone, Debug, PartialEq)]
pub struct AckFilterOption(pub AckFilter);

impl FromStr for AckFilterOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let filter = match text.split_once(':') {
            None if text == "off" => Some(AckFilter::Off),
            None if text == "all" => Some(AckFilter::All),
            Some(("slot", slot)) => slot.parse().ok().map(AckFilter::Slot),
            Some(("port", port)) => port.parse().ok().map(AckFilter::Port),
            Some(("one-in", n)) => n.parse().ok().filter(|n| *n > 0).map(AckFilter::OneIn),
            _ => None,
        };
        filter.map(Self).ok_or_else(|| {
            format!("`{text}`: expected `off`, `all`, `slot:N`, `port:N`, or `one-in:N`")
        })
    }
}

/// [`cc_core::rows::Addresses`] as it is written in options, where the key is still in its file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AddressesOption {
    /// `absent`: no addresses are recorded.
    #[default]
    Absent,
    /// `hashed:KEYFILE`: a hash under the key in this file.
    Hashed(PathBuf),
    /// `plain`: the addresses themselves.
    Plain,
}

impl FromStr for AddressesOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "absent" => Ok(Self::Absent),
            None if text == "plain" => Ok(Self::Plain),
            Some(("hashed", file)) if !file.is_empty() => Ok(Self::Hashed(file.into())),
            _ => Err(format!(
                "`{text}`: expected `absent`, `hashed:KEYFILE`, or `plain`"
            )),
        }
    }
}

/// Deserializes a value that the file writes as the command line does.
fn from_text<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr,
    T::Err: std::fmt::Display,
{
    let text = String::deserialize(deserializer)?;
    text.parse().map(Some).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_wins_over_the_file() {
        let file =
            RunOptions::parse("policy = 'fixed:7'\nslots = 12\nrecord = 'r'").expect("valid");
        let line = RunOptions {
            slots: Some(99),
            ..RunOptions::default()
        };
        let both = line.or(file);
        assert_eq!(both.slots, Some(99));
        assert_eq!(both.policy.policy, Some(PolicySpec::Fixed(7)));
        assert_eq!(both.recording.record, Some("r".into()));
    }

    #[test]
    fn errors_of_the_file_name_the_key() {
        for (text, parts) in [
            ("polciy = 'random'", ["unknown field `polciy`", "`policy`"]),
            ("slots = 1\nwindow_ms = 'x'", ["line 2", "window_ms"]),
            ("record_file_mb = -1", ["line 1", "record_file_mb"]),
            ("slots = ", ["line 1", "slots"]),
        ] {
            let error = RunOptions::parse(text).expect_err(text).to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
    }
}
