//! What a relay did: counts, delays, and how late it was itself.

use std::{
    fmt::{self, Display},
    io::{self, Write},
};

use cc_sim::{
    path::Nanos,
    shim::{Fate, Way, recording::Recorder},
};
use hdrhistogram::Histogram;
use serde::Serialize;

/// What a relay did until it ended.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Connections, or peers of UDP.
    pub connections: u64,
    /// Connections that were refused, because the server could not be reached or because there were
    /// too many peers.
    pub refused: u64,
    /// Why the last one was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    /// The messages to the server.
    pub there: WaySummary,
    /// The messages from the server.
    pub back: WaySummary,
}

/// What became of the messages of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WaySummary {
    /// Datagrams that came, or pieces of streams.
    pub messages: u64,
    /// Messages that the model lost. In a stream, each of them broke a connection.
    pub lost: u64,
    /// Times that pieces of streams were sent again, because a transmission was lost.
    pub resent: u64,
    /// Messages that were dropped because too many bytes were in flight.
    pub no_room: u64,
    /// Messages that were passed on.
    pub forwarded: u64,
    /// Bytes that were passed on.
    pub bytes: u64,
    /// Delays of messages as the model set them; `None` without messages that arrive.
    pub delays: Option<Delays>,
    /// Times by which messages were passed on later than that; `None` without any.
    pub lateness: Option<Delays>,
}

/// A distribution of times, in ms.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Delays {
    /// Mean of all times, ms.
    pub mean_ms: f64,
    /// Standard deviation of the times, ms.
    pub sd_ms: f64,
    /// 5th percentile of the times, ms.
    pub p5_ms: f64,
    /// Median of all times, ms.
    pub p50_ms: f64,
    /// 95th percentile of the times, ms.
    pub p95_ms: f64,
    /// 99th percentile of the times, ms.
    pub p99_ms: f64,
    /// Longest of all times, ms.
    pub max_ms: f64,
}

/// Counts while a relay runs.
pub(super) struct Tally {
    there: WayTally,
    back: WayTally,
    refused: u64,
    refusal: Option<String>,
    recorder: Option<Recorder<Box<dyn Write>>>,
    /// First error of writing the recording.
    unrecorded: Option<io::Error>,
}

struct WayTally {
    messages: u64,
    lost: u64,
    resent: u64,
    no_room: u64,
    forwarded: u64,
    bytes: u64,
    /// In µs, as is the lateness.
    delays: Histogram<u64>,
    lateness: Histogram<u64>,
}

impl Tally {
    pub(super) fn new(recorder: Option<Recorder<Box<dyn Write>>>) -> Self {
        Self {
            there: WayTally::new(),
            back: WayTally::new(),
            refused: 0,
            refusal: None,
            recorder,
            unrecorded: None,
        }
    }

    fn way(&mut self, way: Way) -> &mut WayTally {
        match way {
            Way::There => &mut self.there,
            Way::Back => &mut self.back,
        }
    }

    /// Counts a message that came at `now`.
    pub(super) fn offered(&mut self, way: Way, now: Nanos, fate: Fate) {
        let counts = self.way(way);
        counts.messages += 1;
        match fate {
            Fate::Arrives { at, resent } => {
                counts.resent += u64::from(resent);
                record(&mut counts.delays, at - now);
            }
            Fate::Lost => counts.lost += 1,
        }
        if let Some(recorder) = &mut self.recorder
            && let Err(error) = recorder.record(way, now, fate)
        {
            self.unrecorded = Some(error);
            self.recorder = None;
        }
    }

    /// Counts a message that was passed on later than the model says by `late`.
    pub(super) fn forwarded(&mut self, way: Way, bytes: usize, late: Nanos) {
        let counts = self.way(way);
        counts.forwarded += 1;
        counts.bytes += bytes as u64;
        record(&mut counts.lateness, late);
    }

    /// Counts a message for which there was no room.
    pub(super) fn no_room(&mut self, way: Way) {
        let counts = self.way(way);
        counts.messages += 1;
        counts.no_room += 1;
    }

    /// Counts a connection that was refused.
    pub(super) fn refuse(&mut self, why: impl Display) {
        self.refused += 1;
        self.refusal = Some(why.to_string());
    }

    /// Ends the recording and sums up.
    pub(super) fn finish(&mut self, connections: u64) -> io::Result<Summary> {
        if let Some(recorder) = self.recorder.take() {
            recorder.finish()?;
        }
        if let Some(error) = self.unrecorded.take() {
            return Err(error);
        }
        Ok(Summary {
            connections,
            refused: self.refused,
            refusal: self.refusal.clone(),
            there: self.there.summary(),
            back: self.back.summary(),
        })
    }
}

impl WayTally {
    fn new() -> Self {
        let empty = || Histogram::new(4).expect("4 digits are allowed");
        Self {
            messages: 0,
            lost: 0,
            resent: 0,
            no_room: 0,
            forwarded: 0,
            bytes: 0,
            delays: empty(),
            lateness: empty(),
        }
    }

    fn summary(&self) -> WaySummary {
        WaySummary {
            messages: self.messages,
            lost: self.lost,
            resent: self.resent,
            no_room: self.no_room,
            forwarded: self.forwarded,
            bytes: self.bytes,
            delays: Delays::of(&self.delays),
            lateness: Delays::of(&self.lateness),
        }
    }
}

fn record(times: &mut Histogram<u64>, time: Nanos) {
    times.record(time / 1_000).expect("it grows as needed");
}

impl Delays {
    /// The distribution of times in µs; `None` without any.
    fn of(times: &Histogram<u64>) -> Option<Self> {
        let ms = |quantile| times.value_at_quantile(quantile) as f64 / 1e3;
        (!times.is_empty()).then(|| Self {
            mean_ms: times.mean() / 1e3,
            sd_ms: times.stdev() / 1e3,
            p5_ms: ms(0.05),
            p50_ms: ms(0.5),
            p95_ms: ms(0.95),
            p99_ms: ms(0.99),
            max_ms: times.max() as f64 / 1e3,
        })
    }
}

impl Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} connections, {} refused",
            self.connections, self.refused
        )?;
        if let Some(refusal) = &self.refusal {
            write!(f, " (last: {refusal})")?;
        }
        writeln!(f)?;
        writeln!(
            f,
            "{:<5} {:>9} {:>6} {:>6} {:>7} {:>9} {:>11}  {:>8} {:>7} {:>7} {:>7} {:>7} {:>7} {:>8}",
            "",
            "messages",
            "lost",
            "resent",
            "no room",
            "forwarded",
            "bytes",
            "mean ms",
            "sd",
            "p5",
            "p50",
            "p95",
            "p99",
            "late p99",
        )?;
        for (way, row) in [(Way::There, &self.there), (Way::Back, &self.back)] {
            write!(
                f,
                "{way:<5} {:>9} {:>6} {:>6} {:>7} {:>9} {:>11}  ",
                row.messages, row.lost, row.resent, row.no_room, row.forwarded, row.bytes
            )?;
            match &row.delays {
                Some(delays) => write!(
                    f,
                    "{:>8.2} {:>7.2} {:>7.2} {:>7.2} {:>7.2} {:>7.2}",
                    delays.mean_ms,
                    delays.sd_ms,
                    delays.p5_ms,
                    delays.p50_ms,
                    delays.p95_ms,
                    delays.p99_ms,
                )?,
                None => write!(
                    f,
                    "{:>8} {:>7} {:>7} {:>7} {:>7} {:>7}",
                    "-", "-", "-", "-", "-", "-"
                )?,
            }
            match &row.lateness {
                Some(lateness) => writeln!(f, " {:>8.2}", lateness.p99_ms)?,
                None => writeln!(f, " {:>8}", "-")?,
            }
        }
        Ok(())
    }
}
