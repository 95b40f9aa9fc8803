//! Shapes of the inputs of a policy network, before they are normalised.

use cc_core::interface::{Aspect, Interface, Quantity, STATISTICS};
use cc_ebpf::{Feature, Unit};

use super::Input;

/// Payload of a full-sized segment, bytes.
const SEGMENT: f32 = 1448.0;
/// Smallest difference between delivery rates that matters, bytes/s.
const RATE: f32 = 10_000.0;
/// Smallest fraction of a window that matters.
const FRACTION: f32 = 0.01;

/// Returns the shape of each input of an observation, in order.
///
/// Features go through a logarithm in which the smallest amount that matters (a
/// millisecond, a segment, 80 kbit/s, a count of one, a hundredth of a window) is a unit. The
/// one-hot past actions are 0 or 1 and stay as they are, as do the aspects that are logarithms
/// or slopes.
pub fn input_shapes(interface: &Interface) -> Vec<Input> {
    let scales = &interface.scales;
    let curvature = |feature: Feature| match feature.unit() {
        Unit::Micros => scales.time_ms,
        Unit::Bytes => scales.bytes / SEGMENT,
        Unit::KilobytesPerSecond => scales.bytes / RATE,
        Unit::Count => 1.0,
    };
    let features = Feature::ALL.map(|feature| Input::logarithmic(curvature(feature)));
    let mut inputs = vec![features; STATISTICS].concat();
    let fraction = || Input::logarithmic(1.0 / FRACTION);
    inputs.extend(interface.fractions().iter().map(|_| fraction()));
    inputs.extend(interface.aspects().iter().map(|aspect| match aspect {
        Aspect::Loss | Aspect::Swing | Aspect::ChangeSwing => fraction(),
        _ => Input::LINEAR,
    }));
    for _ in 0..interface.history {
        inputs.extend(std::iter::repeat_n(Input::LINEAR, interface.actions.len()));
        inputs.push(Input::logarithmic(scales.bytes / SEGMENT));
    }
    for quantity in Quantity::ALL {
        let shape = match quantity {
            Quantity::Mean(feature) => Input::logarithmic(curvature(feature)),
            Quantity::Fraction(_) => fraction(),
        };
        inputs.extend(std::iter::repeat_n(shape, interface.series));
    }
    inputs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_input_has_a_shape_whose_unit_is_a_segment_or_a_millisecond() {
        let interface = Interface::default();
        let inputs = input_shapes(&interface);
        assert_eq!(inputs.len(), interface.observation_len());
        // Index 20 starts the means: 0.01 is a delay of 1 ms in units of 100 ms, 1.448 one segment
        // in units of 1000 bytes.
        let (delay, cwnd) = (20 + Feature::Delay as usize, 20 + Feature::Cwnd as usize);
        assert!((inputs[delay].apply(0.01) - 2_f32.ln()).abs() < 1e-6);
        assert!((inputs[cwnd].apply(1.448) - 2_f32.ln()).abs() < 1e-6);
        let newest = interface.past_action(1);
        assert_eq!(inputs[newest].apply(1.0), 1.0);
        assert!((inputs[newest + 5].apply(1.448) - 2_f32.ln()).abs() < 1e-6);
    }

    #[test]
    fn a_hundredth_is_the_unit_of_a_fraction() {
        let interface = Interface {
            features_version: 2,
            ..Interface::default()
        };
        let inputs = input_shapes(&interface);
        assert_eq!(inputs.len(), interface.observation_len());
        for fraction in &inputs[100..102] {
            assert!((fraction.apply(0.01) - 2_f32.ln()).abs() < 1e-6);
        }
        assert_eq!(inputs[interface.past_action(1)], Input::LINEAR);
    }

    #[test]
    fn the_aspects_of_a_situation_stay_as_they_are_but_for_the_loss_and_the_swings() {
        let interface = Interface {
            situation: 20,
            response: 40,
            changes: 20,
            ..Interface::default()
        };
        let inputs = input_shapes(&interface);
        assert_eq!(inputs.len(), interface.observation_len());
        let aspects = &inputs[100..interface.history_offset()];
        assert_eq!(aspects.len(), Aspect::ALL.len());
        for (aspect, input) in Aspect::ALL.into_iter().zip(aspects) {
            assert_eq!(
                *input == Input::LINEAR,
                !matches!(aspect, Aspect::Loss | Aspect::Swing | Aspect::ChangeSwing),
                "{aspect:?}"
            );
        }
    }

    #[test]
    fn the_values_of_a_series_have_the_shape_of_its_feature() {
        let interface = Interface {
            series: 4,
            ..Interface::default()
        };
        let inputs = input_shapes(&interface);
        assert_eq!(inputs.len(), interface.observation_len());
        let mean = &inputs[20 + Feature::Throughput as usize];
        let first = interface.series_offset();
        assert!(inputs[first..first + 4].iter().all(|input| input == mean));
        assert_ne!(&inputs[first + 4], mean, "an RTT");
        let last = inputs.last().expect("some");
        assert!((last.apply(0.01) - 2_f32.ln()).abs() < 1e-6);
    }
}
