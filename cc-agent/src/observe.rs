//! `cc-agent observe`: records of flows that run other congestion controls come in, rows go out,
//! and the flows are left as they are.

mod selection;

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
    options::{PolicyOptions, RecordingOptions, RunOptions},
    recording_setup::RecordingSettings,
    settings::Settings,
    shutdown::Shutdown,
};
use cc_core::foreign::{CongestionControlReport, ForeignFlows};
use cc_recording::Recorder;

/// Records taken at once, at most.
const DRAIN: usize = 4_096;
/// Time between two log lines.
const LOG_PERIOD: Duration = Duration::from_secs(5);

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
        let settings = self.into_run_options().resolve()?;
        let duration = settings.duration;
        let ends = [SignalKind::interrupt(), SignalKind::terminate()];
        let mut shutdown = Shutdown::on_signals(&ends, Capabilities::NONE)?;
        let mut observation = Observation::start(settings, selection, by)?;
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
    /// Flows without a slot, records lost and ACKs missed, as of the last warning.
    warned: [u64; 3],
}

impl Observation {
    fn start(
        settings: Settings,
        selection: Selection,
        by: Option<Way>,
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
            warned: [0; 3],
        })
    }

    async fn run(&mut self) -> Result<(), anyhow::Error> {
        let readable = self.observer.records().readiness()?;
        let mut log = interval(LOG_PERIOD);
        log.set_missed_tick_behavior(MissedTickBehavior::Skip);
        log.tick().await;
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
                }
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

    /// Warns of what was lost since the last call.
    fn warn_of_losses(&mut self) -> Result<(), kernel::Error> {
        let counters = self.observer.counters()?;
        let now = [
            counters[Counter::FlowsWithoutSlot as usize],
            counters[Counter::RecordsDropped as usize],
            self.observer.missed(),
        ];
        let texts = [
            "flows found no slot and were not observed: raise --slots, or select fewer flows",
            "records were lost because the agent was behind",
            "ACKs were missed because a traced program was interrupted by another ACK on its CPU",
        ];
        for ((now, before), text) in now.iter().zip(self.warned).zip(texts) {
            if *now > before {
                warn!("{} {text}", now - before);
            }
        }
        self.warned = now;
        Ok(())
    }
}
