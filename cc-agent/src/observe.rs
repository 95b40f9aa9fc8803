//! `cc-agent observe`: records of flows that run other congestion controls come in, rows and
//! metrics go out, and the flows are left as they are.

mod exporter;
mod selection;

pub use exporter::ExporterOptions;
pub use selection::{CongestionControl, SelectionError, SelectionOptions};

use std::time::Duration;

use cc_ebpf::{AckFilter, Counter, Record, Selection};
use clap::Args;
use tokio::{
    signal::unix::SignalKind,
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};
use tracing::{info, warn};

use crate::{
    kernel::{
        self, Observer, clock, datapath,
        observer::{self, Way},
        privileges::{self, Capabilities},
    },
    metrics::{Losses, Observed, Question},
    options::{PolicyOptions, RecordingOptions, RunOptions},
    recording_setup::RecordingSettings,
    settings::Settings,
    shutdown::Shutdown,
};
use cc_core::foreign::{CongestionControlReport, ForeignFlows};
use cc_recording::Recorder;
use exporter::Exporter;

/// Records taken at once, at most.
const DRAIN: usize = 4_096;
/// Time between two log lines.
const LOG_PERIOD: Duration = Duration::from_secs(5);
/// Time between two looks for the names of new flows' cgroups.
const NAMING_PERIOD: Duration = Duration::from_secs(1);

/// Options of `cc-agent observe`.
#[derive(Args, Clone, Debug, Default)]
pub struct ObserveOptions {
    #[command(flatten)]
    selection: SelectionOptions,

    #[command(flatten)]
    policy: PolicyOptions,

    /// Flows that can be observed at once; further flows are not observed [default: 16384].
    #[arg(long, value_name = "N")]
    slots: Option<u32>,

    /// How to observe the kernel's TCP [default: the first of these that the host permits].
    #[arg(long, value_name = "WAY")]
    by: Option<Way>,

    #[command(flatten)]
    recording: RecordingOptions,

    #[command(flatten)]
    metrics: ExporterOptions,

    /// Stop after this many seconds [default: never].
    #[arg(long, value_name = "SECS")]
    duration: Option<f64>,
}

impl ObserveOptions {
    /// Observes until a signal or the end of the duration.
    ///
    /// # Errors
    ///
    /// Returns an error when an option is wrong, when the host lacks what is needed, or when the
    /// recording cannot be written.
    pub async fn observe(self) -> Result<(), anyhow::Error> {
        let selection = self.selection.resolve()?;
        for name in &self.selection.congestion_control {
            if !datapath::registered(&name.to_string()) {
                warn!(
                    "--congestion-control {name}: this kernel has none of that name so far \
                     (net.ipv4.tcp_available_congestion_control lists them), and no flow of it is \
                     observed until then"
                );
            }
        }
        let by = self.by;
        let exporter = self.metrics.listen()?;
        let settings = self.into_run_options().resolve()?;
        let duration = settings.duration;
        let ends = [SignalKind::interrupt(), SignalKind::terminate()];
        let mut shutdown = Shutdown::on_signals(&ends, Capabilities::NONE)?;
        let mut observation = Observation::start(settings, selection, by, exporter)?;
        shutdown.after(duration);
        tokio::select! {
            outcome = observation.run() => outcome?,
            () = shutdown.requested() => {}
        }
        shutdown.ending();
        observation.end();
        Ok(())
    }

    /// The options of `run` that `observe` shares, so that they are checked in one place.
    fn into_run_options(self) -> RunOptions {
        RunOptions {
            policy: self.policy,
            slots: self.slots,
            recording: self.recording,
            duration: self.duration,
            // The policy gives the interface of the rows and is not asked, however slow it is.
            batch_budget_ms: Some(60_000.0),
            ..RunOptions::default()
        }
    }
}

/// A running observer: its programs, the flows that it has seen, and their recording.
struct Observation {
    observer: Observer,
    flows: ForeignFlows,
    recorder: Option<Recorder>,
    exporter: Option<Exporter>,
    /// What had escaped it as of the last warning.
    warned: Losses,
}

impl Observation {
    fn start(
        settings: Settings,
        selection: Selection,
        by: Option<Way>,
        exporter: Option<Exporter>,
    ) -> Result<Self, anyhow::Error> {
        let interface = settings.policy.interface().clone();
        let options = observer::Options {
            slots: settings.datapath.slots,
            window_ns: settings.datapath.settings.window_ns,
            min_rtt_window_ns: settings.datapath.settings.min_rtt_window_ns,
            ack_filter: AckFilter::Off,
            selection,
            by,
        };
        let observer = Observer::attach(&options)?;
        // Its thread may have to take another identity, for which it needs capabilities.
        let recording = settings
            .recording
            .map(RecordingSettings::begin)
            .transpose()?;
        if let Err(error) = privileges::keep_only(Capabilities::NONE) {
            warn!("the observer keeps its capabilities: {error}");
        }
        let mut flows = ForeignFlows::new(interface.clone(), options.slots as usize);
        let mut recorder = None;
        if let Some(begun) = recording {
            let header = begun.session.header(interface, "observed", None);
            flows.start_recording(header, begun.session.episodes(), begun.addresses);
            recorder = Some(begun.recorder);
        }
        if let Some(exporter) = &exporter {
            flows.start_groups(exporter.grouping());
        }
        let way = observer.way();
        let how = if way.has_rate_samples() {
            "each ACK with its rate sample"
        } else {
            "by received segments alone: each ACK when the next arrives, and not always exactly"
        };
        info!("observing up to {} flows by {way}, {how}", options.slots);
        Ok(Self {
            observer,
            flows,
            recorder,
            exporter,
            warned: Losses::default(),
        })
    }

    async fn run(&mut self) -> Result<(), anyhow::Error> {
        let readable = self.observer.records().readiness()?;
        let mut log = interval(LOG_PERIOD);
        log.set_missed_tick_behavior(MissedTickBehavior::Skip);
        log.tick().await;
        let mut naming = interval(NAMING_PERIOD);
        naming.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            self.close_silent_windows();
            self.record();
            let silence = self.flows.silence_due_ns().map(|due_ns| {
                let left = due_ns.saturating_sub(clock::now_ns());
                Instant::now() + Duration::from_nanos(left)
            });
            tokio::select! {
                guard = readable.readable() => {
                    let mut guard = guard?;
                    if self.take_records() < DRAIN {
                        guard.clear_ready();
                    }
                }
                () = sleep_until(silence.unwrap_or_else(Instant::now)), if silence.is_some() => {}
                _ = log.tick() => {
                    info!("{}", self.summary());
                    self.warn_of_losses()?;
                    self.close_lost();
                }
                _ = naming.tick(), if self.exporter.is_some() => self.name_cgroups(),
                question = exporter::question(self.exporter.as_mut()) => self.answer(question)?,
            }
        }
    }

    /// Takes the records that are left and completes the recording.
    fn end(mut self) {
        while self.take_records() > 0 {}
        info!("{}", self.summary());
        self.flows.stop_recording();
        self.record();
        if let Err(error) = self.warn_of_losses() {
            warn!("{error}");
        }
        info!("detached");
    }

    /// Takes the records that are there; returns their number.
    fn take_records(&mut self) -> usize {
        let records = self.observer.records().drain(DRAIN);
        for bytes in &records {
            match Record::decode(bytes) {
                Ok(record) => {
                    let observer = &self.observer;
                    self.flows.on_record(&record, |slot| observer.flow(slot));
                }
                Err(error) => warn!("the observer sent {error}"),
            }
        }
        records.len()
    }

    /// Closes the windows of flows that have fallen silent.
    fn close_silent_windows(&mut self) {
        let now_ns = clock::now_ns();
        let observer = &self.observer;
        self.flows.close_silent(now_ns, |slot| observer.flow(slot));
    }

    /// Closes the flows whose closed records were lost with others.
    fn close_lost(&mut self) {
        if self.warned.records_dropped > 0 {
            let observer = &self.observer;
            self.flows.close_lost(|slot| observer.occupant(slot));
        }
    }

    /// Gives the cgroups of new flows their names.
    fn name_cgroups(&mut self) {
        if let (Some(exporter), Some(groups)) = (&mut self.exporter, self.flows.groups()) {
            exporter.name(groups, clock::now_ns());
        }
    }

    /// Answers a scrape with what there is now.
    fn answer(&mut self, question: Question) -> Result<(), kernel::Error> {
        let losses = self.losses()?;
        let live = self.flows.live() as u64;
        if let Some(groups) = self.flows.groups() {
            let seen = Observed {
                way: self.observer.way().to_string(),
                slots: self.observer.slots() as u64,
                live,
                cgroups: groups.places_taken() as u64,
                losses,
                groups: groups.all(),
            };
            // The scrape may have been given up.
            let _ = question.send(seen);
        }
        Ok(())
    }

    /// Hands finished rows to the recorder.
    fn record(&mut self) {
        if let Some(recorder) = &mut self.recorder {
            recorder.write(self.flows.take_rows());
        }
    }

    /// The flows of each congestion control and the counts so far, in a line.
    fn summary(&self) -> String {
        let counts = self.flows.counts();
        let mut text = format!("{} flows", self.flows.live());
        for (index, report) in self.flows.reports().iter().enumerate() {
            let CongestionControlReport {
                congestion_control,
                flows,
                rate_mbps,
                srtt_ms,
            } = report;
            let separator = if index == 0 { ": " } else { "; " };
            text.push_str(&format!(
                "{separator}{flows} {congestion_control}, {rate_mbps:.1} Mbit/s, {srtt_ms:.1} ms"
            ));
        }
        text.push_str(&format!(
            " | {} flows and {} windows so far, {} missed",
            counts.flows, counts.windows, counts.windows_missed
        ));
        if let Some(recorder) = &self.recorder {
            text.push_str(&format!(", {} rows written", recorder.status().rows));
        }
        text
    }

    /// What has escaped the observer so far.
    fn losses(&self) -> Result<Losses, kernel::Error> {
        let counters = self.observer.counters()?;
        Ok(Losses {
            flows_without_slot: counters[Counter::FlowsWithoutSlot as usize],
            records_dropped: counters[Counter::RecordsDropped as usize],
            acks_missed: self.observer.missed(),
        })
    }

    /// Warns of what was lost since the last call.
    fn warn_of_losses(&mut self) -> Result<(), kernel::Error> {
        let losses = self.losses()?;
        let before = self.warned.each();
        for ((_, count, meaning), (_, before, _)) in losses.each().into_iter().zip(before) {
            if count > before {
                warn!("{} {meaning}", count - before);
            }
        }
        self.warned = losses;
        Ok(())
    }
}
