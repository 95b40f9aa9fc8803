//! `cc-agent observe`: records of flows that other congestion controls run come in, rows go out, and nothing else
//! happens.

mod selection;

pub use selection::{CongestionControl, Network, SelectionError, SelectionOptions};

use std::{path::PathBuf, time::Duration};

use cc_ebpf::{AckFilter, Counter, Record, Selection};
use clap::Args;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};
use tracing::{info, warn};

use crate::{
    config::{AddressesOption, RunOptions, Settings},
    kernel::{
        self, Observer, clock, datapath,
        observer::{self, Source},
    },
    record::Run,
};
use cc_core::{
    action::ActionSpace,
    foreign::{CongestionControlReport, ForeignFlows},
    policy::PolicySpec,
};
use cc_recording::Recorder;

/// Records taken between two looks at everything else.
const DRAIN: usize = 4_096;
const LOG_PERIOD: Duration = Duration::from_secs(5);

/// Options of `cc-agent observe`.
#[derive(Args, Clone, Debug, Default)]
pub struct ObserveOptions {
    #[command(flatten)]
    selection: SelectionOptions,

    /// Policy of which windows, actions and reward are taken, as for `run`; it is asked nothing.
    #[arg(long, value_name = "POLICY")]
    policy: Option<PolicySpec>,

    /// Length of an observation window in ms; a policy file brings its own [default: 100].
    #[arg(long, value_name = "MS")]
    window_ms: Option<u32>,

    /// Action space, for example `0,/2,-10,+10,*2`; a policy file brings its own.
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    actions: Option<ActionSpace>,

    /// Flows that can be observed at once; the surplus is left alone [default: 16384].
    #[arg(long, value_name = "N")]
    slots: Option<u32>,

    /// Record every flow's windows as Parquet into this directory; without it, only log lines say what there is.
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,

    /// What recordings tell of addresses, as for `run` [default: absent].
    #[arg(long, value_name = "HOW")]
    record_addresses: Option<AddressesOption>,

    /// Complete a recorded file at this size, in MB [default: 64].
    #[arg(long, value_name = "MB")]
    record_file_mb: Option<u64>,

    /// Complete a recorded file at this age, in s [default: 3600].
    #[arg(long, value_name = "SECS")]
    record_file_s: Option<u64>,

    /// Rows are on the disk after this time at the latest, in s; what a crash loses [default: 30].
    #[arg(long, value_name = "SECS")]
    record_delay_s: Option<u64>,

    /// Remove the oldest recordings in the directory beyond this, in MB [default: 10000].
    #[arg(long, value_name = "MB")]
    record_limit_mb: Option<u64>,

    /// Stop after this many seconds [default: never].
    #[arg(long, value_name = "SECS")]
    duration: Option<f64>,
}

impl ObserveOptions {
    /// Observes until a signal or the duration's end.
    ///
    /// # Errors
    ///
    /// An option is wrong, the host lacks what is needed, or the recording cannot be written.
    pub async fn observe(self) -> Result<(), anyhow::Error> {
        let selection = self.selection.resolve()?;
        for name in &self.selection.congestion_control {
            if !datapath::registered(&name.to_string()) {
                warn!(
                    "--congestion-control {name}: this kernel has none of that name so far \
                     (net.ipv4.tcp_available_congestion_control lists them), and nothing is seen of it until then"
                );
            }
        }
        let settings = self.as_run().resolve()?;
        let duration = settings.duration;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut service = Service::new(settings, selection)?;
        let time_is_up = async {
            match duration {
                Some(duration) => tokio::time::sleep(duration).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            outcome = service.run() => outcome?,
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            () = time_is_up => {}
        }
        service.end();
        Ok(())
    }

    /// As `run` has them: what the two share is checked there.
    fn as_run(&self) -> RunOptions {
        RunOptions {
            policy: self.policy.clone(),
            window_ms: self.window_ms,
            actions: self.actions.clone(),
            slots: self.slots,
            record: self.record.clone(),
            record_addresses: self.record_addresses.clone(),
            record_file_mb: self.record_file_mb,
            record_file_s: self.record_file_s,
            record_delay_s: self.record_delay_s,
            record_limit_mb: self.record_limit_mb,
            duration: self.duration,
            ..RunOptions::default()
        }
    }
}

struct Service {
    observer: Observer,
    flows: ForeignFlows,
    recorder: Option<Recorder>,
    /// Flows that had found no slot, records lost and ACKs missed, when that was last said.
    lamented: [u64; 3],
}

impl Service {
    fn new(settings: Settings, selection: Selection) -> Result<Self, anyhow::Error> {
        let interface = settings.policy.policy.interface().clone();
        let options = observer::Options {
            slots: settings.datapath.slots,
            window_ns: settings.datapath.settings.window_ns,
            min_rtt_window_ns: settings.datapath.settings.min_rtt_window_ns,
            ack_filter: AckFilter::Off,
            selection,
            source: None,
        };
        let mut flows = ForeignFlows::new(interface.clone(), options.slots as usize);
        let mut recorder = None;
        if let Some(options) = settings.record {
            let run = Run::begin(options.addresses.clone());
            recorder = Some(run.record(options.limits)?);
            let header = run.header(interface, "observed", None);
            flows.start_recording(header, run.episodes(), options.addresses);
        }
        let observer = Observer::attach(&options)?;
        let how = match observer.source() {
            Source::RateSample => "each ACK with its rate sample",
            Source::Segments => {
                "by the tracepoint of segments alone: each ACK when the next comes, and not always exactly"
            }
        };
        info!("observing up to {} flows, {how}", options.slots);
        Ok(Self {
            observer,
            flows,
            recorder,
            lamented: [0; 3],
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
                    self.lament()?;
                }
            }
        }
    }

    /// Takes what is left, and lets the recorder write all of it.
    fn end(mut self) {
        while self.take_records() > 0 {}
        info!("{}", self.summary());
        self.flows.stop_recording();
        self.record();
        if let Err(error) = self.lament() {
            warn!("{error}");
        }
        info!("detached");
    }

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

    fn close_silent_windows(&mut self) {
        let now_ns = clock::now_ns();
        let observer = &self.observer;
        self.flows.close_silent(now_ns, |slot| observer.flow(slot));
    }

    fn record(&mut self) {
        if let Some(recorder) = &mut self.recorder {
            recorder.write(self.flows.take_rows());
        }
    }

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

    /// Says what went wrong since this was last asked.
    fn lament(&mut self) -> Result<(), kernel::Error> {
        let counters = self.observer.counters()?;
        let now = [
            counters[Counter::FlowsWithoutSlot as usize],
            counters[Counter::RecordsDropped as usize],
            self.observer.missed(),
        ];
        let texts = [
            "flows found no slot and were not observed: raise --slots, or select fewer",
            "records were lost, as the agent was behind",
            "ACKs were missed, as the kernel was interrupted while it looked at another",
        ];
        for ((now, before), text) in now.iter().zip(self.lamented).zip(texts) {
            if *now > before {
                warn!("{} {text}", now - before);
            }
        }
        self.lamented = now;
        Ok(())
    }
}
