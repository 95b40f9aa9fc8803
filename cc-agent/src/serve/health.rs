//! The share of unusable answers among the recent ones of a policy.

use cc_core::policy::Choice;

use crate::inference::Failure;

/// A policy fails when at least this many of its recent answers, and more than this fraction of
/// them, are unusable.
const UNUSABLE: (u64, f64) = (20, 0.1);

/// The answers that are recent: the counts are halved each time there are this many.
const RECENT: u64 = 1_000;

/// The recent answers of the incumbent.
#[derive(Debug, Default)]
pub(super) struct Health {
    answers: u64,
    unusable: u64,
}

impl Health {
    /// Counts the answers to a batch. Returns the failure once too many were unusable.
    pub(super) fn after(&mut self, choices: &[Choice]) -> Option<Failure> {
        for choice in choices {
            if self.answers == RECENT {
                self.answers /= 2;
                self.unusable /= 2;
            }
            self.answers += 1;
            self.unusable += u64::from(*choice == Choice::Invalid);
        }
        let Self { answers, unusable } = *self;
        (unusable >= UNUSABLE.0 && unusable as f64 > UNUSABLE.1 * answers as f64)
            .then_some(Failure::Unusable { unusable, answers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Choice = Choice::Cwnd(1);
    const BAD: Choice = Choice::Invalid;

    #[test]
    fn a_tenth_of_unusable_answers_is_a_failure() {
        let mut health = Health::default();
        assert_eq!(health.after(&[BAD; 19]), None, "too few");
        let failure = health.after(&[BAD]).expect("all of them");
        assert_eq!(
            failure.to_string(),
            "20 of its last 20 answers were not finite"
        );

        let mut health = Health::default();
        for _ in 0..1_000 {
            let one_in_twelve: [Choice; 12] = std::array::from_fn(|i| [BAD, GOOD][i.min(1)]);
            assert_eq!(health.after(&one_in_twelve), None, "tolerated");
        }
    }

    #[test]
    fn a_policy_that_was_good_for_long_fails_soon() {
        let mut health = Health::default();
        assert_eq!(health.after(&[GOOD; 100_000]), None);
        let needed = (1..).find(|_| health.after(&[BAD]).is_some());
        assert!(needed.is_some_and(|needed| needed <= 112), "{needed:?}");
    }
}
