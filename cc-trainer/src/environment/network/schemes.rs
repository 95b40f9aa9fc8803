//! The congestion controls that the flows of an episode run.

use cc_ebpf::Settings;
use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;

use cc_sim::scenario::Scenario;
use cc_sim::sim::Control;
use cc_sim::sim::control::{Bbr, Copa, Cubic, Reno, learned::Learned};

/// Congestion controls that background flows may run in the simulator.
pub const SCHEMES: [&str; 4] = ["bbr", "copa", "cubic", "reno"];

/// Creates the congestion control of each flow of the scenario.
pub(super) fn controls(
    scenario: &Scenario,
    settings: &Settings,
    random: &mut Xoshiro256PlusPlus,
) -> Vec<Control> {
    let control = |scheme: Option<&str>| match scheme {
        Some("bbr") => Control::Bbr(Bbr::new(random.random())),
        Some("copa") => Control::Copa(Copa::new()),
        Some("cubic") => Control::Cubic(Cubic::new()),
        // `Links::new` has refused any other name.
        Some(_) => Control::Reno(Reno::new()),
        None => Control::Learned(Box::new(Learned::new(*settings))),
    };
    let schemes = scenario.flows.iter().map(|flow| flow.scheme.as_deref());
    schemes.map(control).collect()
}
