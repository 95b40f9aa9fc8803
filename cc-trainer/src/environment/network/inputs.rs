//! How the inputs of a policy's network are bent before they are normalised.

use cc_core::interface::{Interface, STATISTICS};
use cc_ebpf::{Feature, Unit};

use crate::normalise::Input;

/// Payload of a packet, bytes.
const PACKET: f32 = 1448.0;
/// What a difference of delivery rates is worth noticing from, bytes/s.
const RATE: f32 = 10_000.0;

/// The shape of each input of an observation, in order: logarithms in which the smallest amount that means anything (a
/// millisecond, a packet, 80 kbit/s, one) is a unit. Past actions, which are 0 or 1, stay as they are.
pub fn inputs(environment: &Interface) -> Vec<Input> {
    let scales = &environment.scales;
    let curvature = |feature: Feature| match feature.unit() {
        Unit::Micros => scales.time_ms,
        Unit::Bytes => scales.bytes / PACKET,
        Unit::KilobytesPerSecond => scales.bytes / RATE,
        Unit::Count => 1.0,
    };
    let features = Feature::ALL.map(|feature| Input::logarithmic(curvature(feature)));
    let mut inputs = vec![features; STATISTICS].concat();
    for _ in 0..environment.history {
        inputs.extend(std::iter::repeat_n(
            Input::LINEAR,
            environment.actions.len(),
        ));
        inputs.push(Input::logarithmic(scales.bytes / PACKET));
    }
    inputs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_input_has_a_shape_and_a_unit_is_a_packet_or_a_millisecond() {
        let environment = Interface::default();
        let inputs = inputs(&environment);
        assert_eq!(inputs.len(), environment.observation_len());
        // The mean of the window: 0.01 of 100 ms, 1.448 of 1000 bytes.
        let (delay, cwnd) = (20 + Feature::Delay as usize, 20 + Feature::Cwnd as usize);
        assert!((inputs[delay].apply(0.01) - 2_f32.ln()).abs() < 1e-6);
        assert!((inputs[cwnd].apply(1.448) - 2_f32.ln()).abs() < 1e-6);
        let newest = environment.past_action(1);
        assert_eq!(inputs[newest].apply(1.0), 1.0);
        assert!((inputs[newest + 5].apply(1.448) - 2_f32.ln()).abs() < 1e-6);
    }
}
