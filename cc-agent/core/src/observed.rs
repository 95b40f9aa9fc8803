//! Flows that other congestion controls run: their windows become rows, with what the congestion control did as if it
//! had been decided.
//!
//! Pure, as [`crate::agent`] is: records come in with the time, rows come out.

use std::{collections::HashMap, sync::Arc};

use cc_ebpf::{Feature, Flow, Identity, Record, WindowRecord};
use serde::Serialize;

use crate::{
    agent::FlowId,
    interface::Interface,
    rows::{
        Addresses, Decided, Episodes, FileHeader, NO_MODE, Recorded,
        buffer::{Book, Episode},
    },
    silence::Silences,
};

/// What happened to flows and windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Flows that were seen.
    pub flows: u64,
    /// Those of them whose opened record was lost and that were found by a later one.
    pub flows_found_late: u64,
    /// Windows received or closed by the agent.
    pub windows: u64,
    /// Windows of silent flows that the agent closed itself.
    pub windows_closed_silent: u64,
    /// Windows that never arrived: what was done on the ones before them is unknown.
    pub windows_missed: u64,
}

/// What flows under one congestion control do together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Share {
    /// The congestion control.
    pub congestion_control: String,
    /// Live flows.
    pub flows: usize,
    /// The sum of their delivery rates over each one's last window, Mbit/s.
    pub rate_mbps: f64,
    /// The mean over them of the smoothed RTT in their last windows, ms.
    pub srtt_ms: f64,
}

/// The flows that are observed.
pub struct Observed {
    interface: Interface,
    flows: Vec<Option<Box<Entry>>>,
    silences: Silences,
    counts: Counts,
    recording: Option<Recording>,
}

struct Entry {
    generation: u32,
    congestion_control: Arc<str>,
    /// Index of the newest window seen.
    newest: u32,
    last: Option<WindowRecord>,
    episode: Option<(Arc<FileHeader>, Episode)>,
}

struct Recording {
    /// Of files of any congestion control, but for the policy's name.
    header: FileHeader,
    headers: HashMap<Arc<str>, Arc<FileHeader>>,
    book: Book,
}

impl Observed {
    /// No flows yet, for `slots` slots, in windows of the environment's length.
    pub fn new(interface: Interface, slots: usize) -> Self {
        let mut flows = Vec::new();
        flows.resize_with(slots, || None);
        Self {
            silences: Silences::new(u64::from(interface.window_ms) * 1_000_000),
            interface,
            flows,
            counts: Counts::default(),
            recording: None,
        }
    }

    /// Makes rows from now on, of every flow that comes. `header` is that of their files, but for the policy: that is
    /// `observed:` and the name of the congestion control.
    pub fn record(&mut self, header: FileHeader, episodes: Episodes, addresses: Addresses) {
        self.recording = Some(Recording {
            header,
            headers: HashMap::new(),
            book: Book::new(episodes, addresses),
        });
    }

    /// Takes a record. `find` reads a slot's state, for flows whose opened record was lost.
    pub fn on_record(&mut self, record: &Record, find: impl FnOnce(u32) -> Option<Flow>) {
        let header = record.header();
        let id = FlowId::named_by(header);
        match record {
            Record::Opened(opened) => {
                self.open(id, &opened.identity);
                self.silences.expect(id, 1, header.time_ns);
            }
            Record::Window(window) => {
                if self.entry(id).is_none() {
                    let Some(flow) = find(id.slot).filter(|f| f.generation == id.generation) else {
                        return;
                    };
                    self.counts.flows_found_late += 1;
                    self.open(id, &flow.opened.identity);
                    if let Some(entry) = self.entry(id) {
                        entry.newest = window.index - 1;
                    }
                }
                self.on_window(id, window);
                self.silences.expect(id, window.index + 1, header.time_ns);
            }
            Record::Closed(_) => self.close(id),
            Record::Ack(_) => {}
        }
    }

    /// A flow whose window should have been closed by now: its state is to be read and handed to
    /// [`Self::on_silence`].
    pub fn next_silence(&mut self, now_ns: u64) -> Option<FlowId> {
        let flows = &self.flows;
        self.silences.next(now_ns, |id| {
            let entry = flows.get(id.slot as usize)?.as_deref()?;
            (entry.generation == id.generation).then_some(entry.newest)
        })
    }

    /// Closes the window of a silent flow, if it is over.
    pub fn on_silence(&mut self, now_ns: u64, flow: &Flow) {
        let id = FlowId::of(flow);
        let Some(newest) = self.entry(id).map(|entry| entry.newest) else {
            return;
        };
        let window = self.silences.close(now_ns, flow);
        if let Some(window) = window.filter(|window| window.index > newest) {
            self.counts.windows_closed_silent += 1;
            self.on_window(id, &window);
        }
    }

    /// When the next silence is due, ns.
    pub fn silence_due_ns(&self) -> Option<u64> {
        self.silences.due_ns()
    }

    /// The rows about which everything is known, since this was last asked.
    pub fn take_rows(&mut self) -> Vec<Recorded> {
        let recording = self.recording.as_mut();
        recording.map_or_else(Vec::new, |recording| recording.book.take())
    }

    /// Makes no more rows: those held back are handed out by [`Self::take_rows`] as they are.
    pub fn stop_recording(&mut self) {
        let Some(recording) = &mut self.recording else {
            return;
        };
        for entry in self.flows.iter_mut().flatten() {
            if let Some((_, episode)) = entry.episode.take() {
                episode.finish(&mut recording.book, false);
            }
        }
    }

    /// Counts since the start.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Number of live flows.
    pub fn live(&self) -> usize {
        self.flows.iter().flatten().count()
    }

    /// The live flows by their congestion controls, in the order of the names.
    pub fn shares(&self) -> Vec<Share> {
        let mut shares: Vec<Share> = Vec::new();
        for entry in self.flows.iter().flatten() {
            let name = &*entry.congestion_control;
            let index = match shares.binary_search_by(|s| (*s.congestion_control).cmp(name)) {
                Ok(index) => index,
                Err(index) => {
                    shares.insert(index, Share::none(name));
                    index
                }
            };
            shares[index].add(entry.last.as_ref());
        }
        shares
    }

    fn entry(&mut self, id: FlowId) -> Option<&mut Entry> {
        let entry = self.flows.get_mut(id.slot as usize)?.as_deref_mut()?;
        (entry.generation == id.generation).then_some(entry)
    }

    fn open(&mut self, id: FlowId, identity: &Identity) {
        let Some(place) = self.flows.get_mut(id.slot as usize) else {
            return;
        };
        self.counts.flows += 1;
        let congestion_control: Arc<str> = identity.congestion_control().into();
        let former = place.take().and_then(|entry| entry.episode);
        let episode = self.recording.as_mut().map(|recording| {
            // The record of its predecessor's end was lost.
            if let Some((_, episode)) = former {
                episode.finish(&mut recording.book, true);
            }
            let initial = u64::from(identity.initial_cwnd) * u64::from(identity.mss);
            let header = recording.header_of(&congestion_control);
            (
                header,
                Episode::begin(&mut recording.book, identity, initial),
            )
        });
        *place = Some(Box::new(Entry {
            generation: id.generation,
            congestion_control,
            newest: 0,
            last: None,
            episode,
        }));
    }

    fn close(&mut self, id: FlowId) {
        if self.entry(id).is_some()
            && let Some(entry) = self.flows.get_mut(id.slot as usize).and_then(Option::take)
            && let (Some((_, episode)), Some(recording)) = (entry.episode, &mut self.recording)
        {
            episode.finish(&mut recording.book, true);
        }
    }

    fn on_window(&mut self, id: FlowId, window: &WindowRecord) {
        let entry = self.flows.get_mut(id.slot as usize);
        let Some(entry) = entry
            .and_then(Option::as_deref_mut)
            .filter(|entry| entry.generation == id.generation && window.index > entry.newest)
        else {
            return;
        };
        self.counts.windows += 1;
        self.counts.windows_missed += u64::from(window.index - entry.newest - 1);
        let window = WindowRecord {
            mode: NO_MODE,
            ..*window
        };
        let former = entry.last.replace(window);
        entry.newest = window.index;
        if let (Some(recording), Some((header, episode))) =
            (&mut self.recording, &mut entry.episode)
        {
            if let Some(former) = former {
                let decision = implied(&self.interface, &former, &window);
                episode.settle(&mut recording.book, Some(&*header), former.index, decision);
            }
            episode.on_window(&mut recording.book, header, &window);
        }
    }
}

impl Recording {
    fn header_of(&mut self, congestion_control: &Arc<str>) -> Arc<FileHeader> {
        let Self {
            header, headers, ..
        } = self;
        let known = headers.entry(congestion_control.clone());
        let make = || FileHeader {
            policy: format!("observed:{congestion_control}"),
            ..header.clone()
        };
        known.or_insert_with(|| make().into()).clone()
    }
}

impl Share {
    fn none(congestion_control: &str) -> Self {
        Self {
            congestion_control: congestion_control.into(),
            flows: 0,
            rate_mbps: 0.0,
            srtt_ms: 0.0,
        }
    }

    fn add(&mut self, window: Option<&WindowRecord>) {
        let mean = |feature| {
            window.map_or(0.0, |window| {
                window.features.mean(feature as usize, window.acks)
            })
        };
        self.flows += 1;
        self.rate_mbps += mean(Feature::Throughput) * 8.0 / 1e3;
        self.srtt_ms += (mean(Feature::SmoothedRtt) / 1e3 - self.srtt_ms) / self.flows as f64;
    }
}

/// What the congestion control did on a window, seen at the end of the `next`: as a decision, the nearest of the
/// actions. Nothing where windows in between are missing.
fn implied(interface: &Interface, window: &WindowRecord, next: &WindowRecord) -> Option<Decided> {
    let actions = &interface.actions;
    (window.index + 1 == next.index).then(|| Decided {
        action: Some(actions.nearest(window.cwnd, next.cwnd, interface.cwnd) as u8),
        probability: None,
        probabilities: None,
        base_cwnd: window.cwnd,
        cwnd: next.cwnd,
        delay_ns: None,
    })
}

#[cfg(test)]
mod tests;
