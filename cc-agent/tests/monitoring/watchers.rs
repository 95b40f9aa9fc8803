//! Prometheus, Alertmanager, the agent's exporter and an observer as child processes in a network
//! namespace, and what their interfaces answer.

use std::{
    env, fs,
    io::{Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use cc_lab::Namespace;
use serde_json::Value;
use tempfile::TempDir;

/// Where the repository's configuration lies.
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");

/// The interval of scrapes and evaluations in the repository's configuration.
const SHIPPED_INTERVAL: &str = "15s";
/// The variable that replaces the interval of the trials, for figures with the shipped one.
const INTERVAL_VARIABLE: &str = "CC_MONITORING_INTERVAL";
/// The interval of the trials.
const INTERVAL: &str = "1s";

/// The interval of scrapes and evaluations.
pub(crate) fn interval() -> Duration {
    let text = interval_text();
    let seconds = text
        .strip_suffix('s')
        .and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(seconds.unwrap_or_else(|| panic!("{INTERVAL_VARIABLE}: {text}")))
}

fn interval_text() -> String {
    env::var(INTERVAL_VARIABLE).unwrap_or_else(|_| INTERVAL.into())
}

const EXPORTER: &str = "127.0.0.1:9465";
const OBSERVER: &str = "127.0.0.1:9467";
const PROMETHEUS: &str = "127.0.0.1:9090";
const ALERTMANAGER: &str = "127.0.0.1:9093";

/// An Alertmanager that tells nobody: its interface is asked.
const SILENT: &str = "route:\n  receiver: nobody\nreceivers:\n  - name: nobody\n";

/// A child process that is killed when it is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The programs that watch an agent.
pub(crate) struct Watchers<'a> {
    namespace: &'a Namespace,
    _processes: Vec<Process>,
    _directory: TempDir,
}

/// What is missing on this host; `None` when nothing is.
pub(crate) fn missing() -> Option<String> {
    let path = env::var_os("PATH").unwrap_or_default();
    let has = |name: &&str| env::split_paths(&path).any(|place| place.join(name).exists());
    let needed = ["prometheus", "promtool", "prometheus-alertmanager"];
    let missing: Vec<_> = needed.into_iter().filter(|name| !has(name)).collect();
    (!missing.is_empty()).then(|| {
        format!(
            "{} not found (`apt install prometheus prometheus-alertmanager`)",
            missing.join(", ")
        )
    })
}

/// A file among the repository's examples.
pub(crate) fn example(name: &str) -> PathBuf {
    Path::new(EXAMPLES).join(name)
}

/// The text of a file among the repository's examples.
pub(crate) fn example_text(name: &str) -> String {
    let path = example(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

impl<'a> Watchers<'a> {
    /// Starts all of them in a namespace, about the agent with this socket, and waits until
    /// Prometheus has scraped it.
    pub(crate) fn start(namespace: &'a Namespace, binary: &str, socket: &Path) -> Self {
        let directory = TempDir::new().expect("a directory for the test");
        let at = |name: &str| directory.path().join(name);
        namespace.ip("link set lo up");
        let configuration = example_text("prometheus/prometheus.yml");
        assert!(configuration.contains(SHIPPED_INTERVAL));
        let configuration = configuration.replace(SHIPPED_INTERVAL, &interval_text());
        fs::write(at("prometheus.yml"), configuration).expect("writes");
        fs::write(at("alertmanager.yml"), SILENT).expect("writes");
        fs::copy(example("prometheus/rlcc.rules.yml"), at("rlcc.rules.yml")).expect("copies");
        let option = |name: &str, path: &str| format!("{name}={}", at(path).display());
        let spawn = |program: &str, arguments: &[String]| {
            let mut command = Command::new(program);
            namespace.hold(&mut command);
            let log = fs::File::create(at(&program.replace('/', "-"))).expect("a log");
            let child = command
                .args(arguments)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log)
                .spawn();
            Process(child.unwrap_or_else(|error| panic!("{program}: {error}")))
        };
        let exporter = [
            "metrics".into(),
            format!("--listen={EXPORTER}"),
            format!("--socket={}", socket.display()),
        ];
        let observer = ["observe".into(), format!("--metrics={OBSERVER}")];
        let alertmanager = [
            option("--config.file", "alertmanager.yml"),
            option("--storage.path", "alerts"),
            format!("--web.listen-address={ALERTMANAGER}"),
            "--cluster.listen-address=".into(),
        ];
        let prometheus = [
            option("--config.file", "prometheus.yml"),
            option("--storage.tsdb.path", "metrics"),
            format!("--web.listen-address={PROMETHEUS}"),
        ];
        let processes = vec![
            spawn(binary, &exporter),
            spawn(binary, &observer),
            spawn("prometheus-alertmanager", &alertmanager),
            spawn("prometheus", &prometheus),
        ];
        let watchers = Self {
            namespace,
            _processes: processes,
            _directory: directory,
        };
        within(
            Duration::from_secs(120),
            "Prometheus has scraped the agent",
            || {
                let found = watchers.query("rlcc_up").ok()?;
                (found.first()?["value"][1] == "1").then_some(())
            },
        );
        watchers
    }

    /// What Prometheus answers to a query: its series.
    ///
    /// # Errors
    ///
    /// Returns what it answered when that is no success.
    pub(crate) fn query(&self, query: &str) -> Result<Vec<Value>, String> {
        self.series(&format!("/api/v1/query?query={}", escaped(query)))
    }

    /// What Prometheus answers to a query about a span of Unix time: its series, with a value at
    /// each step.
    ///
    /// # Errors
    ///
    /// Returns what it answered when that is no success.
    pub(crate) fn range(
        &self,
        query: &str,
        (start, end): (f64, f64),
        step_s: f64,
    ) -> Result<Vec<Value>, String> {
        let query = escaped(query);
        let span = format!("start={start}&end={end}&step={step_s}");
        self.series(&format!("/api/v1/query_range?query={query}&{span}"))
    }

    fn series(&self, path: &str) -> Result<Vec<Value>, String> {
        let answer = self.get(PROMETHEUS, path)?;
        match answer["data"]["result"].as_array() {
            Some(series) if answer["status"] == "success" => Ok(series.clone()),
            _ => Err(answer.to_string()),
        }
    }

    /// The names of the alerts that Alertmanager has at present.
    pub(crate) fn alerts(&self) -> Vec<String> {
        let answer = self.get(ALERTMANAGER, "/api/v2/alerts").unwrap_or_default();
        let alerts = answer.as_array().cloned().unwrap_or_default();
        let names = alerts
            .iter()
            .filter_map(|alert| alert["labels"]["alertname"].as_str());
        names.map(str::to_owned).collect()
    }

    fn get(&self, address: &str, path: &str) -> Result<Value, String> {
        let asked = self.namespace.within(|| {
            let mut stream = TcpStream::connect(address)?;
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            // Without chunks, as HTTP 1.0 has none.
            write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok::<_, std::io::Error>(answer)
        });
        let answer = asked.map_err(|error| error.to_string())?;
        let (_, body) = answer
            .split_once("\r\n\r\n")
            .ok_or("an answer without a body")?;
        serde_json::from_str(body).map_err(|error| format!("{error}: {body}"))
    }
}

fn escaped(query: &str) -> String {
    query.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

/// Waits until an attempt succeeds, and returns its result and the time that it took.
pub(crate) fn within<T>(
    limit: Duration,
    what: &str,
    mut attempt: impl FnMut() -> Option<T>,
) -> (T, Duration) {
    let since = Instant::now();
    loop {
        if let Some(value) = attempt() {
            return (value, since.elapsed());
        }
        assert!(since.elapsed() < limit, "not within {limit:?}: {what}");
        thread::sleep(Duration::from_millis(250));
    }
}
