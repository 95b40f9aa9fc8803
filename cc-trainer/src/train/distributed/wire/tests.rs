//! Rollouts as messages and back, and messages that are damaged.

use proptest::prelude::*;
use prost::Message;

use super::*;
use crate::{softmax::MASKED, train::distributed::tests::rollout};

const WIDTHS: Widths = Widths {
    steps: 4,
    observation: 3,
    privileged: 2,
    actions: 3,
    state: 2,
    tasks: 5,
};

/// A rollout in which everything varies that can.
fn varied() -> Rollout {
    let mut rollout = rollout(&WIDTHS, 7);
    rollout.first[1] = Some(End::Terminated);
    rollout.first[2] = Some(End::Truncated);
    rollout.action = vec![2, 0, 1, 2];
    rollout.effects[3..6].copy_from_slice(&[0, 0, 2]);
    rollout.allowed[4] = false;
    rollout.logits[4] = MASKED;
    rollout.origin[1] = Origin::Recorded;
    rollout.origin[2] = Origin::Observed;
    rollout.quantities[3].loss = Some(0.25);
    rollout.quantities[1].share = Some(1.5);
    rollout.task = vec![0, 4, 4, 1];
    rollout.h = vec![0.5, -0.5];
    rollout
}

fn episode(task: usize) -> Episode {
    Episode {
        task,
        total: -1.5,
        steps: 12,
        intervals: 13.5,
    }
}

#[test]
fn rollouts_come_back_as_they_were() {
    let plain = rollout(&WIDTHS, 3);
    let unmasked = Rollout {
        allowed: Vec::new(),
        ..plain.clone()
    };
    let waited = Duration::from_millis(3);
    for (given, expected) in [
        (vec![plain.clone()], vec![plain.clone()]),
        (vec![varied(), plain.clone()], vec![varied(), plain.clone()]),
        // Without a mask all actions are allowed, beside others and alone.
        (vec![unmasked.clone()], vec![plain.clone()]),
        (vec![unmasked, varied()], vec![plain, varied()]),
        (vec![], vec![]),
    ] {
        let episodes = vec![episode(0), episode(4)];
        let batch = Batch::of(&given, &episodes, waited);
        assert!(batch.encoded_len() <= WIDTHS.message_bytes());
        let decoded = Batch::decode(batch.encode_to_vec().as_slice()).expect("a message");
        let received = decoded.check(&WIDTHS, 7).expect("accepted");
        let expected = Received {
            rollouts: expected,
            episodes,
            waited,
        };
        assert_eq!(received, expected);
    }
    // What all rollouts have alike is not sent.
    let batch = Batch::of(&[rollout(&WIDTHS, 3)], &[], waited);
    assert!(batch.effects.is_empty() && batch.allowed.is_empty() && batch.origin.is_empty());
}

#[test]
fn a_rollout_is_no_larger_than_it_is_said_to_be() {
    let mut largest = varied();
    largest.version = u64::MAX;
    largest.task = vec![4; 4];
    let batch = Batch::of(&[largest], &[], Duration::ZERO);
    // Each field has a tag and a length beside it.
    assert!(batch.encoded_len() <= WIDTHS.rollout_bytes() + 21 * 4);
}

#[test]
fn values_that_cannot_be_are_refused() {
    let refusal = |change: fn(&mut Rollout)| {
        let mut rollout = varied();
        change(&mut rollout);
        let batch = Batch::of(&[rollout], &[], Duration::ZERO);
        let error = batch.check(&WIDTHS, 7).expect_err("refused");
        error.to_string()
    };
    for (change, expected) in [
        (
            (|r| r.observation[1] = f32::NAN) as fn(&mut Rollout),
            "observation has the value NaN",
        ),
        (|r| r.reward[3] = f32::INFINITY, "reward has the value inf"),
        (|r| r.logits[0] = f32::NAN, "logits has the value NaN"),
        (|r| r.h[1] = f32::NAN, "h has the value NaN"),
        (|r| r.intervals[0] = -1.0, "intervals has the value -1"),
        (|r| r.action[0] = 3, "action has 3; expected at most 2"),
        // It is masked there.
        (|r| r.action[1] = 1, "an action that was allowed"),
        (|r| r.task[0] = 5, "task has 5; expected at most 4"),
        (|r| r.effects[3] = 1, "the first action with an effect"),
        (|r| r.effects[3] = 9, "the first action with an effect"),
        (|r| r.version = 8, "versions has 8; expected at most 7"),
        (
            |r| r.quantities[0].loss = Some(f32::INFINITY),
            "quantities has the value inf",
        ),
        (|r| _ = r.action.pop(), "action has 3 values; expected 4"),
        (|r| _ = r.c.pop(), "c has 4 values; expected 8"),
    ] {
        let text = refusal(change);
        assert!(text.contains(expected), "{text}");
    }
    let many = vec![rollout(&WIDTHS, 0); WIDTHS.rollouts() + 1];
    assert!(
        Batch::of(&many, &[], Duration::ZERO)
            .check(&WIDTHS, 7)
            .is_err()
    );
    for wrong in [
        episode(5),
        Episode {
            total: f64::NAN,
            ..episode(0)
        },
    ] {
        let batch = Batch::of(&[], &[wrong], Duration::ZERO);
        assert!(batch.check(&WIDTHS, 7).is_err());
    }
}

proptest! {
    /// Whatever is accepted is a rollout that the learner can learn from.
    #[test]
    fn damaged_messages_are_refused_or_whole(
        cut in 0_usize..4000,
        flips in prop::collection::vec((0_usize..4000, 0_u8..=255), 0..8),
    ) {
        let rollouts = [varied(), rollout(&WIDTHS, 3)];
        let mut bytes =
            Batch::of(&rollouts, &[episode(1)], Duration::ZERO).encode_to_vec();
        for (at, value) in flips {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        bytes.truncate(cut.max(1));
        let Ok(batch) = Batch::decode(bytes.as_slice()) else { return Ok(()) };
        let Ok(received) = batch.check(&WIDTHS, 7) else { return Ok(()) };
        for rollout in &received.rollouts {
            prop_assert_eq!(rollout.len(), WIDTHS.steps);
            prop_assert_eq!(rollout.observation.len(), WIDTHS.steps * WIDTHS.observation);
            prop_assert!(rollout.observation.iter().all(|value| value.is_finite()));
            prop_assert!(rollout.version <= 7);
            for (step, &action) in rollout.action.iter().enumerate() {
                prop_assert!(rollout.allowed[step * WIDTHS.actions + action as usize]);
            }
        }
        let again = Batch::of(&received.rollouts, &received.episodes, received.waited);
        prop_assert_eq!(again.check(&WIDTHS, 7), Ok(received));
    }

    /// Bytes that were never a message allocate and accept nothing.
    #[test]
    fn arbitrary_bytes_are_no_rollouts(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        if let Ok(message) = FromWorker::decode(bytes.as_slice())
            && let Some(from_worker::Content::Batch(batch)) = message.content
            && let Ok(received) = batch.check(&WIDTHS, 7)
        {
            prop_assert!(received.rollouts.is_empty());
        }
    }
}
