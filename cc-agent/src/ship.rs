//! `cc-agent ship`: uploads completed recordings to a directory or object store, for retraining
//! elsewhere.
//!
//! A process of its own, which reads the agent's directory of recordings and nothing else of it.
//! What is already there by name and length is not uploaded again, so nothing has to be remembered.

mod tally;

use std::{
    fs::{self, File},
    io::{self, Read},
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail};
use cc_channel::{Store, Upload};
use cc_core::regular_file;
use cc_recording::{RecordingError, files};
use clap::Args;
use nix::unistd::gethostname;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{Instant, sleep, sleep_until},
};
use tracing::{info, warn};

use self::tally::Tally;
use crate::{metrics, period::period};

#[cfg(test)]
pub(crate) use tally::page;

/// Time until the first attempt after a failed one. It doubles with each further failure.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest time between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// The recordings that are uploaded, and where to.
#[derive(Args, Debug)]
pub struct ShipOptions {
    /// The directory of recordings: what `run --record` names.
    pub directory: PathBuf,

    /// The store: a directory, or the URL of one or of an object store.
    #[arg(long, value_name = "URL")]
    pub to: String,

    /// What the names begin with in the store [default: the host's name].
    #[arg(long, value_name = "HOST")]
    pub host: Option<String>,

    /// Time between two looks at the directory, in s.
    #[arg(long, value_name = "S", default_value_t = 60.0)]
    pub every: f64,

    /// The highest rate of the upload, in Mbit/s, over 5 MiB at a time [default: no limit].
    #[arg(long, value_name = "MBIT")]
    pub rate: Option<f64>,

    /// Remove a recording once it has been uploaded. Otherwise the agent removes the oldest beyond
    /// --record-max-mb.
    #[arg(long)]
    pub delete: bool,

    /// Upload what is there, and end. Exits with 1 at the first failure.
    #[arg(long)]
    pub once: bool,

    /// Serve how uploading goes, in OpenMetrics' text format at http://ADDR:PORT/metrics [without
    /// an address: 127.0.0.1:9469].
    #[arg(
        long,
        value_name = "ADDR:PORT",
        num_args = 0..=1,
        default_missing_value = "127.0.0.1:9469",
        conflicts_with = "once"
    )]
    pub metrics: Option<SocketAddr>,

    /// Allow an address for --metrics that is not a loopback one. Whoever reaches it can read how
    /// much was recorded and uploaded.
    #[arg(long, requires = "metrics")]
    pub expose_metrics: bool,
}

/// Uploads from one directory to one store.
struct Shipper {
    directory: PathBuf,
    store: Store,
    host: String,
    /// The time that a byte takes at the highest rate, s.
    seconds_per_byte: f64,
    deletes: bool,
    tally: Tally,
}

impl ShipOptions {
    /// Uploads until SIGINT or SIGTERM, or once. Failures are tried again ever more rarely, at
    /// least every five minutes.
    ///
    /// # Errors
    ///
    /// Returns an error when an option is not valid, and with `once` when anything fails.
    pub async fn ship(self) -> anyhow::Result<()> {
        let every = period(self.every)?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let once = self.once;
        let mut registry = metrics::registry();
        let tally = Tally::of(&mut registry);
        metrics::serve_own(self.metrics, self.expose_metrics, registry)?;
        let shipper = Shipper::new(self, tally)?;
        if once {
            return shipper.ship_all().await;
        }
        tokio::select! {
            () = shipper.ship_on(every) => Ok(()),
            _ = interrupt.recv() => Ok(()),
            _ = terminate.recv() => Ok(()),
        }
    }
}

impl Shipper {
    fn new(options: ShipOptions, tally: Tally) -> anyhow::Result<Self> {
        let seconds_per_byte = match options.rate {
            None => 0.0,
            Some(rate) if rate > 0.0 && rate.is_finite() => 8e-6 / rate,
            Some(rate) => bail!("--rate {rate}: expected a rate in Mbit/s above 0"),
        };
        let host = match options.host {
            Some(host) => host,
            None => gethostname()
                .context("the host's name")?
                .to_string_lossy()
                .into_owned(),
        };
        if host.is_empty() || host.starts_with('.') || host.contains('/') {
            bail!("--host {host}: expected a name without slashes that begins with no dot");
        }
        fs::read_dir(&options.directory)
            .with_context(|| format!("directory {}", options.directory.display()))?;
        Ok(Self {
            directory: options.directory,
            store: Store::open(&options.to).context("--to")?,
            host,
            seconds_per_byte,
            deletes: options.delete,
            tally,
        })
    }

    /// Uploads until it is dropped, with ever longer pauses after failures.
    async fn ship_on(&self, every: Duration) {
        info!("shipping {} to {}", self.directory.display(), self.store);
        let mut pause = FIRST_PAUSE;
        loop {
            let outcome = self.ship_all().await;
            self.tally.passed(&outcome);
            match outcome {
                Ok(()) => {
                    pause = FIRST_PAUSE;
                    sleep(every).await;
                }
                Err(error) => {
                    warn!("{error:#}; trying again in {} s", pause.as_secs());
                    sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// Uploads every complete recording that is not in the store, the oldest first.
    async fn ship_all(&self) -> anyhow::Result<()> {
        let recordings = match files(&self.directory) {
            Ok(recordings) => recordings,
            // The agent has completed none yet.
            Err(RecordingError::Open { .. } | RecordingError::Empty { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let shipped = self.store.list(&self.host).await?;
        let name_of = |path: &Path| {
            let name = path.file_name()?.to_str()?;
            Some(format!("{}/{name}", self.host))
        };
        let is_new = |path: &&PathBuf| {
            let length = path.metadata().map(|found| found.len()).ok();
            name_of(path).is_some_and(|name| shipped.get(&name) != length.as_ref())
        };
        self.tally.waits(recordings.iter().filter(is_new).count());
        for path in recordings {
            let Some(name) = name_of(&path) else {
                warn!("{} is not shipped: its name is not UTF-8", path.display());
                continue;
            };
            let file = match regular_file::open_itself(&path) {
                Ok(file) => file,
                // The agent has removed it: it was the oldest.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => {
                    warn!("{} is not shipped: {error}", path.display());
                    continue;
                }
            };
            let length = file.metadata()?.len();
            if shipped.get(&name) != Some(&length) {
                let uploaded = self.upload(file, &name).await;
                let sent = uploaded.with_context(|| format!("shipping {}", path.display()))?;
                // A complete recording does not change, unless somebody writes to it.
                if sent != length {
                    warn!(
                        "{} changed while it was shipped: again next time",
                        path.display()
                    );
                    continue;
                }
                self.tally.uploaded(length);
                info!("shipped {name} ({length} bytes)");
            }
            if self.deletes {
                self.delete(&path)?;
            }
        }
        Ok(())
    }

    /// Uploads a file at no more than the rate. Returns its length.
    async fn upload(&self, file: File, name: &str) -> anyhow::Result<u64> {
        let mut upload = self.store.upload(name).await?;
        match self.send(file, &mut upload).await {
            Ok(sent) => {
                upload.finish().await?;
                Ok(sent)
            }
            Err(error) => {
                upload.abort().await;
                Err(error)
            }
        }
    }

    async fn send(&self, mut file: File, upload: &mut Upload) -> anyhow::Result<u64> {
        let started = Instant::now();
        let mut sent = 0;
        loop {
            let mut part = Vec::new();
            let read = (&mut file)
                .take(Upload::PART as u64)
                .read_to_end(&mut part)?;
            if read > 0 || sent == 0 {
                upload.part(part).await?;
            }
            sent += read as u64;
            let due = Duration::from_secs_f64(sent as f64 * self.seconds_per_byte);
            sleep_until(started + due).await;
            if read < Upload::PART {
                return Ok(sent);
            }
        }
    }

    fn delete(&self, path: &Path) -> anyhow::Result<()> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("removing {}", path.display()))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use prometheus_client::registry::Registry;
    use tempfile::TempDir;

    use super::*;

    /// A directory of recordings and a store; names of the recordings in it as an agent gives them.
    struct Place(TempDir);

    impl Place {
        fn new() -> Self {
            let place = Self(TempDir::new().expect("a directory for the test"));
            for name in ["recordings", "store"] {
                fs::create_dir(place.at(name)).expect("creates");
            }
            place
        }

        fn at(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn record(&self, number: usize, bytes: &[u8]) {
            fs::write(self.recording(number), bytes).expect("writes");
        }

        fn recording(&self, number: usize) -> PathBuf {
            self.at(&format!(
                "recordings/1795000000-0000abcd-{number:06}.parquet"
            ))
        }

        fn shipper(&self, change: impl FnOnce(&mut ShipOptions)) -> anyhow::Result<Shipper> {
            let mut options = ShipOptions {
                directory: self.at("recordings"),
                to: self.at("store").display().to_string(),
                host: Some("a".into()),
                every: 1.0,
                rate: None,
                delete: false,
                once: true,
                metrics: None,
                expose_metrics: false,
            };
            change(&mut options);
            Shipper::new(options, Tally::of(&mut metrics::registry()))
        }

        async fn ship(&self, change: impl FnOnce(&mut ShipOptions)) {
            let shipper = self.shipper(change).expect("valid options");
            shipper.ship_all().await.expect("ships");
        }

        /// The numbers and contents of what has been shipped.
        fn shipped(&self) -> Vec<(usize, Vec<u8>)> {
            let number = |path: &Path| {
                let name = path.file_stem()?.to_str()?;
                name.rsplit('-').next()?.parse().ok()
            };
            let paths = files(&self.at("store/a")).unwrap_or_default();
            let read = |path: &PathBuf| {
                let number = number(path).expect("it has one");
                (number, fs::read(path).expect("reads"))
            };
            paths.iter().map(read).collect()
        }
    }

    #[tokio::test]
    async fn complete_recordings_are_shipped_once() {
        let place = Place::new();
        place.ship(|_| ()).await;
        assert_eq!(place.shipped(), [], "there is none yet");
        let large = vec![7; 2 * Upload::PART];
        place.record(1, b"one");
        place.record(2, &large);
        let open = place.recording(3).with_added_extension("open");
        fs::write(open, "not complete").expect("writes");
        symlink("/etc/passwd", place.recording(4)).expect("links");
        place.ship(|_| ()).await;
        assert_eq!(place.shipped(), [(1, b"one".to_vec()), (2, large.clone())]);
        // What is there is not written again; what is there in part is.
        let at = |number: usize| {
            let name = place.recording(number);
            place
                .at("store/a")
                .join(name.file_name().expect("it has one"))
        };
        fs::write(at(1), "uno").expect("writes");
        fs::write(at(2), "part").expect("writes");
        place.ship(|_| ()).await;
        assert_eq!(place.shipped(), [(1, b"uno".to_vec()), (2, large)]);
    }

    #[tokio::test]
    async fn what_was_shipped_is_deleted_on_request_alone() {
        let place = Place::new();
        place.record(1, b"one");
        place.ship(|_| ()).await;
        assert!(place.recording(1).exists());
        place.ship(|options| options.delete = true).await;
        assert!(!place.recording(1).exists());
        assert_eq!(place.shipped(), [(1, b"one".to_vec())]);
        // A store that cannot be written to costs no recording.
        place.record(2, b"two");
        let shipper = place
            .shipper(|options| options.delete = true)
            .expect("valid");
        fs::remove_dir_all(place.at("store")).expect("removes");
        fs::write(place.at("store"), "a file is in the way").expect("writes");
        shipper.ship_all().await.expect_err("there is no store");
        assert!(place.recording(2).exists());
    }

    #[tokio::test(start_paused = true)]
    async fn the_rate_is_kept() {
        let place = Place::new();
        place.record(1, &vec![7; 3 * Upload::PART]);
        let started = Instant::now();
        place.ship(|options| options.rate = Some(10.0)).await;
        // On paused time, which goes on only while everybody sleeps.
        let expected = (3 * Upload::PART * 8) as f64 / 10e6;
        let took = started.elapsed().as_secs_f64();
        assert!(
            (took / expected - 1.0).abs() < 0.01,
            "{took} s, expected {expected}"
        );
    }

    /// A figure of how uploading goes.
    fn value(registry: &Registry, name: &str) -> f64 {
        metrics::value(registry, &format!("ship_{name}"))
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_tried_again_ever_more_seldom_until_one_succeeds() {
        let place = Place::new();
        let every = Duration::from_secs(60);
        place.record(1, b"one");
        let mut shipper = place.shipper(|_| ()).expect("valid");
        let mut page = metrics::registry();
        shipper.tally = Tally::of(&mut page);
        let failures = || value(&page, "pass_failures_total");
        let (store, away) = (place.at("store"), place.at("away"));
        let take_away = || {
            fs::rename(&store, &away).expect("moves");
            fs::write(&store, "a file is in the way").expect("writes");
        };
        let story = async {
            // After 0, 1, 3, 7, 15, 31, 63, 127, 255 and 511 s, and then every 300 s.
            sleep(Duration::from_secs(1_300)).await;
            assert_eq!(failures(), 12.0);
            assert_eq!(value(&page, "pass_failing"), 1.0);
            assert_eq!(value(&page, "recordings_total"), 0.0);
            fs::remove_file(&store).expect("removes");
            fs::rename(&away, &store).expect("moves");
            sleep(Duration::from_secs(300)).await;
            assert_eq!(place.shipped(), [(1, b"one".to_vec())]);
            assert_eq!(value(&page, "pass_failing"), 0.0);
            assert_eq!(value(&page, "recordings_total"), 1.0);
            assert_eq!(value(&page, "uploaded_bytes_total"), 3.0);
            assert_eq!(value(&page, "waiting_recordings"), 0.0);
            // The pauses begin anew: at most a minute later, then after 1, 3, 7, 15 and 31 s.
            take_away();
            place.record(2, b"two");
            sleep(Duration::from_secs(60 + 45)).await;
            assert!((17.0..=18.0).contains(&failures()), "{}", failures());
            assert!(place.recording(2).exists());
        };
        take_away();
        tokio::select! {
            () = shipper.ship_on(every) => unreachable!("it goes on for ever"),
            () = story => {}
        }
    }

    #[test]
    fn bad_options_are_refused() {
        let place = Place::new();
        type Change = fn(&mut ShipOptions);
        let changes: [(&str, Change); 4] = [
            ("--rate 0", |options| options.rate = Some(0.0)),
            ("--host a/b", |options| options.host = Some("a/b".into())),
            ("directory /no/such", |options| {
                options.directory = "/no/such".into();
            }),
            ("--to", |options| options.to = "/no/such".into()),
        ];
        for (expected, change) in changes {
            let error = place.shipper(change).err().expect(expected);
            assert!(format!("{error:#}").starts_with(expected), "{error:#}");
        }
    }
}
