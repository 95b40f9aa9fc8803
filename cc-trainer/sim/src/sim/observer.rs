//! The observer over the watched flows of a simulation: `cc_core::foreign`, the code of `cc-agent
//! observe`, in virtual time.

use cc_core::foreign::ForeignFlows;
use cc_core::rows::{Addresses, Episodes, FileHeader, Recorded};

use super::Simulation;
use crate::path::Nanos;

/// The longest time between two looks at the records, ns: a flow's first window is noticed before
/// it is over.
const LOOK: Nanos = 50_000_000;

/// A simulation whose [observed](super::control::Observed) flows are recorded, in the rows that
/// `cc-agent observe --record` makes.
///
/// ```
/// use std::{path::Path, sync::Arc};
///
/// use cc_core::{interface::Interface, rows::{AddressForm, Episodes, FileHeader}};
/// use cc_sim::scenario;
/// use cc_sim::sim::{Control, Simulation, control::Observed, observer::SimulatedObserver};
///
/// let text = "[[scenario]]\nname = \"link\"\nrate_mbps = 12\ndelay_ms = 30\nqueue = { bdp = 1 }";
/// let scenario = scenario::parse(text, Path::new("."))?.remove(0);
/// let header = FileHeader {
///     interface: Interface::default(),
///     policy: String::new(), // That of a row is `observed:cubic`.
///     policy_metadata: None,
///     server: None,
///     agent_version: "0.1.0".into(),
///     kernel: "simulated".into(),
///     host: [].into(),
///     started_ns: 0,
///     utc_offset_ns: 0,
///     addresses: AddressForm::Absent,
/// };
/// let settings = header.interface.datapath_settings();
/// let cubic = Control::named("cubic", 1).expect("a known control");
/// let cubic = Control::Observed(Box::new(Observed::new(cubic, "cubic", settings)));
/// let simulation = Simulation::new(&scenario, vec![cubic], 1);
/// let mut observer = SimulatedObserver::new(simulation, header, Episodes::named("an example"));
/// observer.run(3_000_000_000);
/// let rows = observer.finish();
/// assert_eq!(rows[0].header.policy, "observed:cubic");
/// assert!((25..30).contains(&rows.len()), "a row is a window of 100 ms");
/// # Ok::<(), cc_sim::scenario::ScenarioError>(())
/// ```
pub struct SimulatedObserver {
    simulation: Simulation,
    flows: ForeignFlows,
}

impl SimulatedObserver {
    /// Observes the simulation, which is at its beginning. Rows get the header with the name of the
    /// control, after `observed:`, as its policy. The controls were
    /// [made](super::control::Observed::new) with the settings of the header's interface.
    pub fn new(mut simulation: Simulation, header: FileHeader, episodes: Episodes) -> Self {
        for place in 0..simulation.connections() {
            if let Some(control) = simulation.watched(place) {
                // Slots have the numbers of the connections' places.
                control.set_slot(place as u32);
            }
        }
        let slots = simulation.most_connections();
        let mut flows = ForeignFlows::new(header.interface.clone(), slots);
        flows.start_recording(header, episodes, Addresses::Absent);
        Self { simulation, flows }
    }

    /// Runs until the time given.
    pub fn run(&mut self, until: Nanos) {
        loop {
            let now = self.simulation.now();
            let silence = self.flows.silence_due_ns().unwrap_or(until);
            let due = until.min(silence).min(now + LOOK).max(now);
            self.simulation.run(due);
            self.take_records();
            let now = self.simulation.now();
            let simulation = &mut self.simulation;
            let read = |slot: u32| Some(*simulation.watched(slot as usize)?.flow());
            self.flows.close_silent(now, read);
            if now >= until {
                return;
            }
        }
    }

    /// Takes the rows that became complete since the last call. Rows of all flows are mixed.
    pub fn take_rows(&mut self) -> Vec<Recorded> {
        self.flows.take_rows()
    }

    /// Ends the observation, and returns the rows that were not taken. The last row of a flow that
    /// has not stopped does not end it.
    pub fn finish(mut self) -> Vec<Recorded> {
        self.flows.stop_recording();
        self.flows.take_rows()
    }

    /// The simulation that is observed.
    pub fn simulation(&self) -> &Simulation {
        &self.simulation
    }

    fn take_records(&mut self) {
        for place in 0..self.simulation.connections() {
            let Some(control) = self.simulation.watched(place) else {
                continue;
            };
            while let Some(record) = control.take_record() {
                let state = *control.flow();
                self.flows.on_record(&record, |_| Some(state));
            }
        }
    }
}
