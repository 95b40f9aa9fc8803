//! From a gradient to a change of the rate (section 4.2).

/// Change of the rate per unit of gradient, Mbit/s (θ₀, `kUtilityGradientToRateChangeFactor`).
const FACTOR: f64 = 1.0;
/// Largest first change in one direction, as a part of the rate (ω₀,
/// `kInitialMaximumProportionalChange`).
const BOUNDARY: f64 = 0.05;
/// By how much each change that reached the boundary moves it (δ,
/// `kMaximumProportionalChangeStepSize`).
const BOUNDARY_STEP: f64 = 0.06;
/// Most changes in a new direction that are not amplified (`PCC_MAX_SWING_BUFFER`).
const MOST_SWING: u32 = 2;

/// What earlier changes do to the next.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Step {
    /// Whether the last change was an increase; `None` before the first.
    up: Option<bool>,
    /// Number of changes in the same direction, which amplify the next (τ).
    confidence: u32,
    /// Number of changes left before the confidence grows: a sender that swings about the best rate
    /// has none.
    swing: u32,
    /// Number of times the boundary was moved (k).
    moved: u32,
}

impl Step {
    /// The change of the rate in Mbit/s for a gradient of the utility.
    pub(super) fn change(&mut self, rate: f64, gradient: f64) -> f64 {
        let up = gradient > 0.0;
        match self.up.replace(up) {
            Some(before) if before == up => match self.swing {
                0 => self.confidence += 1,
                _ => self.swing -= 1,
            },
            Some(_) => {
                self.confidence = 1;
                self.swing = (self.swing + 1).min(MOST_SWING);
                self.moved = 0;
            }
            None => self.confidence = 1,
        }
        let wanted = amplifier(self.confidence) * FACTOR * gradient.abs();
        let change = self.bound(rate, wanted);
        if up { change } else { -change }
    }

    /// Bounds a change by the dynamic boundary ω₀ + k · δ, and moves that: by one step beyond what
    /// reached it, or back to the smallest that allows the change.
    fn bound(&mut self, rate: f64, wanted: f64) -> f64 {
        let boundary = rate * (BOUNDARY + f64::from(self.moved) * BOUNDARY_STEP);
        if wanted > boundary {
            self.moved += 1;
            return boundary;
        }
        let beyond = (wanted / rate - BOUNDARY).max(0.0);
        self.moved = (beyond / BOUNDARY_STEP).ceil() as u32;
        wanted
    }
}

/// The confidence amplifier m(τ): as many times as there were changes in the same direction, and
/// twice as fast after the third. The paper asks for an amplifier that does not fall (section 4.2);
/// these values are not checked against its text. The authors' code amplifies by 1, 1.5, 2, 2.5, 3
/// and 3.5, then by 4, 6, 8, 10, 14, 18, 31, and by 9 more each time
/// (`pcc_vivace_rate_controller.cpp` of PCC-Uspace).
fn amplifier(confidence: u32) -> f64 {
    match confidence {
        0..=3 => f64::from(confidence),
        _ => 2.0 * f64::from(confidence) - 3.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_in_one_direction_are_amplified() {
        let mut step = Step::default();
        let changes: Vec<f64> = (0..6).map(|_| step.change(1_000.0, 0.5)).collect();
        assert_eq!(changes, [0.5, 1.0, 1.5, 2.5, 3.5, 4.5]);
    }

    #[test]
    fn a_turn_ends_the_confidence_and_delays_it() {
        let mut step = Step::default();
        for _ in 0..5 {
            step.change(1_000.0, 0.5);
        }
        let changes: Vec<f64> = (0..4).map(|_| step.change(1_000.0, -0.5)).collect();
        assert_eq!(changes, [-0.5, -0.5, -1.0, -1.5]);
    }

    #[test]
    fn a_change_is_bounded_by_a_boundary_that_moves() {
        let mut step = Step::default();
        let changes: Vec<f64> = (0..3).map(|_| step.change(100.0, 1_000.0)).collect();
        for (found, expected) in changes.iter().zip([5.0, 11.0, 17.0]) {
            assert!((found - expected).abs() < 1e-9, "{changes:?}");
        }
        // A small gradient moves it back, and a turn to the start.
        step.change(100.0, 0.1);
        assert_eq!(step.moved, 0);
        step.change(100.0, 1_000.0);
        assert_eq!(step.change(100.0, -1_000.0), -5.0);
    }
}
