//! The settings of an agent: options checked against each other, defaults filled in, and the policy
//! loaded.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use cc_ebpf::{AckFilter, Startup};
use nix::unistd::Group;
use tracing::warn;

use crate::{
    deploy::{CanarySettings, LoadedPolicy, PolicyLoader},
    kernel::{self, privileges::Capabilities},
    ledger::Ledger,
    options::{AddressesOption, DEFAULT_NAME, RecordingOptions, RunOptions},
    recording_setup::RecordingSettings,
    remote::RemoteSettings,
    scope::Served,
    settings_error::{SettingsError, out_of_range},
};
use cc_core::{
    canary::GuardRails,
    interface::Interface,
    policy::PolicySpec,
    regular_file,
    rows::{AddressKey, Addresses},
};
use cc_recording::Limits;

/// The settings that an agent starts with.
pub struct Settings {
    /// The datapath's name, slots, settings, and which sockets it serves.
    pub datapath: kernel::Options,
    /// The policy, ready to decide.
    pub policy: LoadedPolicy,
    /// The policy server that decides where it can, [`Self::policy`] standing in for it; `None`
    /// when that decides alone.
    pub remote: Option<RemoteSettings>,
    /// Loads the policies that later commands name.
    pub loader: PolicyLoader,
    /// The guard rails of every canary.
    pub rails: GuardRails,
    /// Length of the blocks of time that canaries compare.
    pub canary_block: Duration,
    /// The candidate to start with; `None` without `--canary`.
    pub canary: Option<CanarySettings>,
    /// What to record; `None` without `--record`.
    pub recording: Option<RecordingSettings>,
    /// CSV file for per-ACK records; `None` without `--per-ack`.
    pub per_ack_file: Option<PathBuf>,
    /// Whether to become the host's default congestion control.
    pub default: bool,
    /// Which sockets are served, in a line for people.
    pub served: String,
    /// Whether to take over from a running agent.
    pub takeover: bool,
    /// Path of the status socket.
    pub socket: PathBuf,
    /// Number of the group that may connect to the socket; `None` for the agent's own.
    pub socket_group: Option<u32>,
    /// Whether all capabilities are kept after the start.
    pub keep_capabilities: bool,
    /// Time after which the agent stops; `None` means never.
    pub duration: Option<Duration>,
    /// Whether to print log lines instead of the live view.
    pub plain: bool,
}

impl Settings {
    /// The capabilities that the agent keeps after its start, of those that it has: to serve and
    /// to end, it needs none. With `--default` it must write the sysctl again when it ends, and
    /// look into other network namespaces.
    pub fn capabilities_to_keep(&self) -> Capabilities {
        let mut keep = Capabilities::NONE;
        if self.keep_capabilities {
            return Capabilities::ALL;
        }
        // Attaching to cgroups that commands name takes none: the program is loaded by then.
        if !self.datapath.cgroups.is_empty() || self.default {
            keep = keep.with(Capabilities::NET_ADMIN);
        }
        if self.default {
            keep = keep
                .with(Capabilities::SYS_ADMIN)
                .with(Capabilities::SYS_PTRACE);
        }
        if self.loader.caged {
            keep = keep.with(Capabilities::CAGE);
        }
        keep
    }

    /// Takes what somebody has gone back to in the place of a policy that was rolled back from.
    /// Returns what is said of that; `None` where the policy is served that the options name.
    pub(crate) fn serve_what_was_gone_back_to(&mut self, ledger: &Ledger) -> Option<String> {
        let instead = ledger.instead_of(&self.policy.name);
        // Where a server decides, the policy only stands in for it.
        let instead = instead.filter(|_| self.remote.is_none())?;
        let named = &self.policy.text;
        let loaded = (ledger.place()).load(&instead, &self.loader, self.policy.interface());
        match loaded {
            Ok(loaded) => {
                let said = format!(
                    "the configuration names {named}, which was rolled back from: {} is served \
                     instead; change the configuration, or put it into service again with \
                     `cc-agent reload` or `rollback --to`",
                    loaded.text
                );
                self.policy = loaded;
                Some(said)
            }
            Err(error) => {
                warn!(
                    "{named} was rolled back from, but what was served before cannot be loaded: \
                     {error}"
                );
                None
            }
        }
    }
}

impl RunOptions {
    /// The niceness of the agent, which is in force before [`Self::resolve`] loads anything.
    ///
    /// # Errors
    ///
    /// Returns an error if it is out of range.
    pub fn niceness(&self) -> Result<i32, SettingsError> {
        let niceness = self.nice.unwrap_or(-15);
        if !(-20..=19).contains(&niceness) {
            return Err(out_of_range("--nice", niceness, "-20 to 19"));
        }
        Ok(niceness)
    }

    /// Checks all options but the niceness, and loads the policy. Nothing of the kernel is touched.
    ///
    /// # Errors
    ///
    /// Returns the first option that is out of range or contradicts the policy, or the reason why
    /// the policy cannot be loaded.
    pub fn resolve(self) -> Result<Settings, SettingsError> {
        let name = self.name.as_deref().unwrap_or(DEFAULT_NAME).to_owned();
        let socket = self.socket();
        kernel::datapath::check_name(&name).map_err(SettingsError::Name)?;
        let heartbeat_ms = self.heartbeat_ms.unwrap_or(1_000);
        within("--heartbeat-ms", u64::from(heartbeat_ms), 20, 60_000)?;
        let slots = self.slots.unwrap_or(16_384);
        within("--slots", u64::from(slots), 1, 1 << 20)?;
        if let Some(duration) = self.duration
            && !(duration.is_finite() && (0.0..=1e9).contains(&duration))
        {
            return Err(out_of_range(
                "--duration",
                duration,
                "a number of seconds, 0 or more",
            ));
        }

        if let Some(ms) = self.remote.patience_ms {
            within("--patience-ms", ms, 1, MAX_PATIENCE_MS)?;
        }
        let Served {
            cgroups,
            cgroups_by_command,
            default,
            scope,
            restricted,
            text: served,
        } = self.scope.resolve()?;
        let mut spec = self.policy.policy.clone().unwrap_or_default();
        if let Some(sha256) = &self.policy.policy_sha256 {
            let pinned = spec.pinned(sha256);
            spec = pinned
                .map_err(|error| out_of_range("--policy-sha256", sha256, error.to_string()))?;
        }
        let mut loader = PolicyLoader {
            interface: self.interface(),
            serving: self.serving,
            seed: self.seed.unwrap_or(0),
            added_delay: Duration::from_millis(self.added_delay_ms.unwrap_or(0)),
            batch_budget: self.batch_budget()?,
            caged: !self.no_cage.unwrap_or(false),
        };
        let (policy, remote) = match &spec {
            PolicySpec::Server(address) => {
                let (local, remote) = self.remote.connect(address, &mut loader)?;
                (local, Some(remote))
            }
            spec => {
                self.remote.refuse()?;
                (loader.load(spec)?, None)
            }
        };
        let interface = policy.interface().clone();
        self.check_against(&spec, &interface)?;
        let cwnd_max = self
            .cwnd_max
            .unwrap_or(interface.cwnd.max)
            .min(interface.cwnd.max);
        if let PolicySpec::Fixed(cwnd) = spec
            && !(interface.cwnd.min..=cwnd_max).contains(&cwnd)
        {
            let expected = format!(
                "a cwnd within --cwnd-min {} and --cwnd-max {cwnd_max}",
                interface.cwnd.min
            );
            return Err(out_of_range("--policy", &spec, expected));
        }
        let rails = self.rails(&interface)?;
        let canary = self.canary(&loader, rails, &interface)?;
        let ack_filter = self
            .per_ack
            .clone()
            .map_or(AckFilter::Off, |option| option.0);
        let startup = self.startup.clone();
        let patience = remote
            .as_ref()
            .map_or(Duration::ZERO, RemoteSettings::patience);
        let datapath = cc_ebpf::Settings {
            cwnd_max,
            ..interface.datapath_settings()
        }
        .with_patience(
            u64::from(heartbeat_ms) * 1_000_000,
            patience.as_nanos() as u64,
        )
        .with_startup(startup.map_or(Startup::SlowStart, |option| option.0))
        .with_ack_filter(ack_filter);
        Ok(Settings {
            datapath: kernel::Options {
                slots,
                settings: datapath,
                cgroups,
                cgroups_by_command,
                scope,
                restricted,
                name: name.clone(),
            },
            recording: self.recording.resolve()?,
            policy,
            remote,
            loader,
            rails,
            canary_block: self.canary_block()?,
            canary,
            per_ack_file: (ack_filter != AckFilter::Off)
                .then(|| self.per_ack_file.unwrap_or_else(|| "acks.csv".into())),
            default,
            served,
            takeover: self.takeover.unwrap_or(false),
            socket,
            socket_group: self.socket_group.as_deref().map(group_id).transpose()?,
            keep_capabilities: self.keep_capabilities.unwrap_or(false),
            duration: self.duration.map(Duration::from_secs_f64),
            plain: self.plain.unwrap_or(false),
        })
    }

    /// The guard rails of every canary.
    fn rails(&self, running: &Interface) -> Result<GuardRails, SettingsError> {
        let window = Duration::from_millis(running.window_ms.into());
        let added = Duration::from_millis(self.added_delay_ms.unwrap_or(0));
        let mut rails = GuardRails {
            batch_time: self.batch_budget()?.unwrap_or(window / 4) + added,
            ..GuardRails::default()
        };
        if let Some(units) = self.canary_units {
            within("--canary-units", units, 2, 1_000_000)?;
            rails.units = units;
        }
        Ok(rails)
    }

    /// Length of the blocks of time that canaries compare.
    fn canary_block(&self) -> Result<Duration, SettingsError> {
        let seconds = self.canary_block.unwrap_or(10.0);
        if !(1.0..=86_400.0).contains(&seconds) {
            return Err(out_of_range(
                "--canary-block",
                seconds,
                "1 to 86400 seconds",
            ));
        }
        Ok(Duration::from_secs_f64(seconds))
    }

    /// The longest time for a batch; `None` is a quarter of the policy's window.
    fn batch_budget(&self) -> Result<Option<Duration>, SettingsError> {
        let Some(ms) = self.batch_budget_ms else {
            return Ok(None);
        };
        if !(0.001..=60_000.0).contains(&ms) {
            return Err(out_of_range("--batch-budget-ms", ms, "0.001 to 60000"));
        }
        Ok(Some(Duration::from_secs_f64(ms / 1e3)))
    }

    /// The candidate to start with; `--canary` and `--candidate` need each other.
    fn canary(
        &self,
        loader: &PolicyLoader,
        rails: GuardRails,
        running: &Interface,
    ) -> Result<Option<CanarySettings>, SettingsError> {
        let (percent, spec) = match (self.canary, &self.candidate) {
            (None, None) => return Ok(None),
            (Some(percent), Some(spec)) => (percent, spec),
            (Some(percent), None) => {
                return Err(out_of_range("--canary", percent, "also --candidate POLICY"));
            }
            (None, Some(spec)) => {
                return Err(out_of_range("--candidate", spec, "also --canary PERCENT"));
            }
        };
        if !(0.0..=100.0).contains(&percent) {
            return Err(out_of_range("--canary", percent, "0 to 100 percent"));
        }
        Ok(Some(CanarySettings {
            candidate: loader.load_beside(spec, running)?,
            percent,
            by: self.canary_by.unwrap_or_default(),
            rails,
        }))
    }

    /// The interface of policies that have no file.
    fn interface(&self) -> Interface {
        let mut interface = Interface::default();
        let defaults = interface.cwnd;
        interface.window_ms = self.policy.window_ms.unwrap_or(interface.window_ms);
        interface.history = self.history.unwrap_or(interface.history);
        interface.cwnd.min = self.cwnd_min.unwrap_or(defaults.min);
        interface.cwnd.max = self.cwnd_max.unwrap_or(defaults.max);
        interface.pacing_gain = self.pacing_gain;
        if let Some(actions) = &self.policy.actions {
            interface.actions = actions.clone();
        }
        interface
    }

    /// Refuses options that differ from what the policy's file says.
    fn check_against(&self, spec: &PolicySpec, has: &Interface) -> Result<(), SettingsError> {
        let contradiction = |option, asked: String, has: String| SettingsError::Contradiction {
            option,
            asked,
            policy: spec.clone(),
            has,
        };
        fn differ<T: PartialEq + ToString>(asked: &Option<T>, has: &T) -> Option<(String, String)> {
            let asked = asked.as_ref().filter(|asked| *asked != has)?;
            Some((asked.to_string(), has.to_string()))
        }
        let pairs = [
            (
                "--window-ms",
                differ(&self.policy.window_ms, &has.window_ms),
            ),
            ("--history", differ(&self.history, &has.history)),
            ("--actions", differ(&self.policy.actions, &has.actions)),
            ("--cwnd-min", differ(&self.cwnd_min, &has.cwnd.min)),
            (
                "--pacing-gain",
                differ(&self.pacing_gain, &has.pacing_gain.unwrap_or(0.0)),
            ),
        ];
        match pairs
            .into_iter()
            .find_map(|(option, pair)| Some((option, pair?)))
        {
            Some((option, (asked, has))) => Err(contradiction(option, asked, has)),
            None => Ok(()),
        }
    }
}

impl RecordingOptions {
    /// Checks the options and fills in the defaults.
    ///
    /// # Errors
    ///
    /// Returns the first option that is out of range, or the reason why the key of `hashed:KEYFILE`
    /// cannot be used. They are checked without `--record` too.
    pub fn resolve(&self) -> Result<Option<RecordingSettings>, SettingsError> {
        const MB: u64 = 1_000_000;
        let file_mb = self.record_file_mb.unwrap_or(64);
        within("--record-file-mb", file_mb, 1, 100_000)?;
        let file_s = self.record_file_s.unwrap_or(3_600);
        within("--record-file-s", file_s, 1, 1_000_000)?;
        let delay_s = self.record_delay_s.unwrap_or(30);
        within("--record-delay-s", delay_s, 1, 3_600)?;
        let limit_mb = self.record_limit_mb.unwrap_or(10_000);
        // Room for the file being written beside a complete one.
        within("--record-limit-mb", limit_mb, 2 * file_mb, 1_000_000_000)?;
        let addresses = match self.record_addresses.clone().unwrap_or_default() {
            AddressesOption::Absent => Addresses::Absent,
            AddressesOption::Plain => Addresses::Plain,
            AddressesOption::Hashed(path) => Addresses::Hashed(read_key(&path)?),
        };
        Ok(self.record.clone().map(|directory| RecordingSettings {
            limits: Limits {
                directory,
                file_bytes: file_mb * MB,
                file_age: Duration::from_secs(file_s),
                group_age: Duration::from_secs(delay_s),
                total_bytes: limit_mb * MB,
            },
            addresses,
        }))
    }
}

/// Size limit of a key file, bytes.
const MAX_KEY: u64 = 1 << 16;
/// Longest time that an answer of a policy server is waited for, ms.
const MAX_PATIENCE_MS: u64 = 60_000;

fn read_key(path: &Path) -> Result<AddressKey, SettingsError> {
    let text = regular_file::read(path, MAX_KEY).map_err(|source| SettingsError::Read {
        path: path.to_owned(),
        source,
    })?;
    AddressKey::new(text.trim_ascii_end()).ok_or_else(|| {
        let expected = format!("a file of at least {} bytes", AddressKey::SHORTEST);
        let found = format!("hashed:{}", path.display());
        out_of_range("--record-addresses", found, expected)
    })
}

/// The number of a group that is given by its name or number.
fn group_id(group: &str) -> Result<u32, SettingsError> {
    if let Ok(id) = group.parse() {
        return Ok(id);
    }
    match Group::from_name(group) {
        Ok(Some(found)) => Ok(found.gid.as_raw()),
        _ => Err(out_of_range(
            "--socket-group",
            group,
            "a group of this host (`getent group` lists them), or a number",
        )),
    }
}

fn within(option: &'static str, found: u64, least: u64, most: u64) -> Result<(), SettingsError> {
    if (least..=most).contains(&found) {
        Ok(())
    } else {
        Err(out_of_range(option, found, format!("{least} to {most}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(toml: &str) -> Result<Settings, String> {
        let mut options = RunOptions::parse(toml).map_err(|error| error.to_string())?;
        // This program cannot start itself as a policy's process.
        options.no_cage = Some(true);
        // A batch of an unoptimised build takes about as long as a policy may.
        options.batch_budget_ms = options.batch_budget_ms.or(Some(60_000.0));
        options.niceness().map_err(|error| error.to_string())?;
        options.resolve().map_err(|error| error.to_string())
    }

    #[test]
    fn without_options_the_default_policy_is_served_as_rlcc() {
        let settings = resolve("").expect("defaults are valid");
        assert_eq!(settings.datapath.name, "rlcc");
        assert_eq!(settings.datapath.settings.window_ns, 100_000_000);
        assert_eq!(
            settings.datapath.settings.ack_filter,
            AckFilter::Off.encode().0
        );
        assert_eq!(settings.per_ack_file, None);
        assert!(settings.recording.is_none() && settings.remote.is_none());
        assert_eq!(settings.policy.name.len(), 64, "a SHA-256");
        assert!(settings.policy.text.starts_with("default: "));
    }

    #[test]
    fn the_niceness_is_known_before_anything_is_loaded() {
        let niceness = |toml| RunOptions::parse(toml).map(|options| options.niceness());
        assert!(matches!(niceness(""), Ok(Ok(-15))));
        assert!(matches!(niceness("nice = 3"), Ok(Ok(3))));
    }

    #[test]
    fn every_option_has_a_key() {
        let settings = resolve(
            "policy = 'random'\nserving = 'softmax:0.5'\nseed = 3\nname = 'x'\nwindow_ms = 50\n\
             actions = '0,*2'\nhistory = 0\ncwnd_min = 4\ncwnd_max = 50\npacing_gain = 1.5\n\
             startup = 'constant'\nheartbeat_ms = 500\nslots = 5\nper_ack = 'port:80'\n\
             per_ack_file = 'f'\nadded_delay_ms = 25\nbatch_budget_ms = 60000.0\n\
             no_cage = true\nnice = 3\ncgroup = '/c'\ndefault = true\ndefault_local = true\n\
             only_to = '10.0.0.0/8'\nnever_to = '10.9.0.0/16'\nonly_via = 'eth0'\n\
             never_via = 'eth1'\nrestricted = false\n\
             socket = 's'\nsocket_group = '7'\nkeep_capabilities = true\nduration = 2.5\n\
             plain = true\ncanary = 12.5\ncandidate = 'fixed:9'\ncanary_by = 'host'\n\
             canary_block = 2.5\ncanary_units = 4\n\
             record = 'r'\nrecord_addresses = 'plain'\nrecord_file_mb = 3\n\
             record_file_s = 4\nrecord_delay_s = 5\nrecord_limit_mb = 6\n\
             cgroups_by_command = true\n",
        )
        .expect("valid");
        assert_eq!(
            settings.datapath,
            kernel::Options {
                name: "x".into(),
                slots: 5,
                settings: cc_ebpf::Settings {
                    window_ns: 50_000_000,
                    min_rtt_window_ns: 10_000_000_000,
                    cwnd_min: 4,
                    cwnd_max: 50,
                    ..cc_ebpf::Settings::default()
                }
                .with_patience(500_000_000, 0)
                .with_startup(Startup::Constant)
                .with_pacing_gain(Some(1.5))
                .with_ack_filter(AckFilter::Port(80)),
                cgroups: vec!["/c".into()],
                cgroups_by_command: true,
                scope: settings.datapath.scope.clone(),
                restricted: false,
            }
        );
        let scope = &settings.datapath.scope;
        assert_eq!((scope.networks.len(), scope.devices.len()), (4, 2));
        assert!(settings.served.ends_with("; only via eth0; never via eth1"));
        assert_eq!(settings.loader.added_delay, Duration::from_millis(25));
        assert_eq!(settings.loader.batch_budget, Some(Duration::from_secs(60)));
        assert_eq!(settings.rails.batch_time, Duration::from_millis(60_025));
        assert!(!settings.loader.caged);
        assert_eq!(settings.duration, Some(Duration::from_millis(2500)));
        assert_eq!(settings.per_ack_file, Some("f".into()));
        assert!(settings.default && settings.plain && settings.keep_capabilities);
        assert_eq!(settings.socket_group, Some(7));
        assert_eq!(settings.capabilities_to_keep(), Capabilities::ALL);
        let canary = settings.canary.expect("a candidate");
        assert_eq!((canary.percent, canary.rails.units), (12.5, 4));
        assert_eq!(canary.by, cc_core::canary::CanaryBy::Host);
        assert_eq!(settings.canary_block, Duration::from_millis(2_500));
        assert_eq!(canary.candidate.text, "fixed:9");
        let record = settings.recording.expect("a recording");
        assert!(matches!(record.addresses, Addresses::Plain));
        let limits = Limits {
            directory: "r".into(),
            file_bytes: 3_000_000,
            file_age: Duration::from_secs(4),
            group_age: Duration::from_secs(5),
            total_bytes: 6_000_000,
        };
        assert_eq!(record.limits, limits);
    }

    #[test]
    fn capabilities_are_kept_only_for_what_needs_them() {
        let kept = |toml: &str| resolve(toml).expect("valid").capabilities_to_keep();
        assert_eq!(kept("policy = 'random'"), Capabilities::NONE);
        assert_eq!(kept("cgroup = '/c'"), Capabilities::NET_ADMIN);
        let of_default = kept("default = true").to_string();
        assert_eq!(
            of_default,
            "CAP_NET_ADMIN, CAP_SYS_PTRACE and CAP_SYS_ADMIN"
        );
    }

    #[test]
    fn errors_name_the_option_and_what_it_takes() {
        for (toml, expected) in [
            ("polciy = 'random'", "unknown field `polciy`"),
            ("policy = 'nonsense'", "no policy is called `nonsense`"),
            ("policy = 'random'\nactions = '0,/0'", "/0"),
            ("name = 'far_too_long_a_name'", "1 to 15 characters"),
            ("slots = 0", "--slots 0: expected 1 to"),
            ("heartbeat_ms = 1", "--heartbeat-ms 1: expected"),
            (
                "window_ms = 50",
                "--window-ms 50 does not fit the policy default",
            ),
            ("actions = '0,*2'", "--actions 0,*2 does not fit"),
            ("pacing_gain = 2.0", "--pacing-gain 2 does not fit"),
            ("policy = 'fixed:5000'", "--cwnd-max 2000"),
            ("policy = 'random'\nwindow_ms = 0", "window_ms is 0"),
            ("serving = 'softmax:0'", "`softmax:0`: expected"),
            ("per_ack = 'one-in:0'", "`one-in:0`: expected"),
            ("nice = 20", "--nice 20: expected -20 to 19"),
            (
                "batch_budget_ms = 0.0",
                "--batch-budget-ms 0: expected 0.001 to",
            ),
            ("startup = 'fast'", "`fast`: expected"),
            ("duration = -1.0", "--duration -1"),
            ("record_addresses = 'some'", "`some`: expected `absent`"),
            ("record_addresses = 'hashed:/no/such'", "/no/such: "),
            (
                "record_addresses = 'hashed:/dev/zero'",
                "/dev/zero: it is a character device; expected a regular file",
            ),
            (
                "record_addresses = 'hashed:/proc/sys/net/ipv4/tcp_sack'",
                "tcp_sack: expected a file of at least 16",
            ),
            (
                "policy_sha256 = '00'",
                "`default` cannot be pinned to `00`: expected the path of an .onnx file",
            ),
            (
                "record_limit_mb = 100",
                "--record-limit-mb 100: expected 128",
            ),
            ("canary = 10.0", "--canary 10: expected also --candidate"),
            (
                "candidate = 'random'",
                "--candidate random: expected also --canary",
            ),
            (
                "canary_block = 0.5",
                "--canary-block 0.5: expected 1 to 86400 seconds",
            ),
            ("canary_units = 1", "--canary-units 1: expected 2 to"),
            (
                "candidate = 'random'\ncanary = 101.0",
                "--canary 101: expected 0 to 100",
            ),
            (
                "policy = 'random'\nwindow_ms = 50\ncandidate = 'default'\ncanary = 1.0",
                "policy default was made for window_ms 100, but the running agent has 50",
            ),
            ("record_file_mb = 0", "--record-file-mb 0: expected"),
            (
                "socket_group = 'no such group'",
                "--socket-group no such group: expected a group of this host",
            ),
        ] {
            let error = resolve(toml).err().expect(toml);
            assert!(error.contains(expected), "{toml}: {error}");
        }
    }
}
