//! The congestion controls that the flows of an episode run.

use cc_ebpf::Settings;
use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;

use cc_sim::scenario::Scenario;
use cc_sim::sim::Control;
use cc_sim::sim::control::learned::Learned;

/// Creates the congestion control of each flow of the scenario.
pub(super) fn controls(
    scenario: &Scenario,
    settings: &Settings,
    random: &mut Xoshiro256PlusPlus,
) -> Vec<Control> {
    let control = |scheme: Option<&str>| match scheme {
        Some(name) => {
            // Only what is random draws a number, so that older runs can be repeated.
            let seed = match name {
                "bbr" | "bbr3" | "vivace" => random.random(),
                _ => 0,
            };
            Control::named(name, seed).expect("`Links::new` has refused any other name")
        }
        None => Control::Learned(Box::new(Learned::new(*settings))),
    };
    let schemes = scenario.flows.iter().map(|flow| flow.scheme.as_deref());
    schemes.map(control).collect()
}
