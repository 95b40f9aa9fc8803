//! What a learner does with replicas that come, go, are late, or send what does not fit.

use super::*;
use crate::{
    learner::{
        LearnerSettings, Normalisation,
        partners::tests::{learner, parameters, rollouts},
    },
    model::{Activation, ParameterLayout, Shape},
    rollout::Rollout,
};

const STEPS: usize = 4;

fn shape() -> Shape {
    Shape {
        observation: 2,
        hidden: vec![3],
        activation: Activation::Tanh,
        lstm: None,
        actions: 2,
        privileged: 0,
        predictions: 0,
        values: 1,
        branches: vec![],
    }
}

/// A learner of its own part and of those of a group's replicas.
fn leader(group: &Arc<Group>) -> crate::learner::Learner {
    let settings = LearnerSettings {
        unroll: STEPS,
        reward_normalisation: Normalisation::Global,
        ..LearnerSettings::default()
    };
    let mut leader = learner(&shape(), 1, &settings);
    leader.learn_with(Box::new(Leader::new(group.clone())));
    leader
}

fn batch() -> Vec<Rollout> {
    rollouts(&shape(), 1, STEPS, 3, 1)
}

/// Parameters after an update that nobody else takes part in.
fn alone() -> Vec<f32> {
    let mut alone = leader(&Arc::new(Group::new(1, None)));
    alone.update(&batch(), 0.0).expect("finite");
    parameters(&alone)
}

/// A replica that a test speaks for.
struct Replica {
    membership: Membership,
    told: mpsc::Receiver<Result<FromLearner, Status>>,
}

impl Replica {
    fn join(group: &Arc<Group>) -> Self {
        let (to_replica, told) = mpsc::channel(8);
        let membership = group.join(to_replica).expect("there is a place");
        Self { membership, told }
    }

    fn begin(&self, oldest: u64) {
        let begin = Begin { fresh: 2, oldest };
        self.membership.begin(begin).expect("it is a member");
    }

    fn heard(&mut self) -> Result<from_learner::Content, Status> {
        let message = self.told.try_recv().expect("a message has come");
        Ok(message?.content.expect("content"))
    }
}

/// A group that waits for nobody who has not sent what is due.
fn impatient(max_lag: Option<u64>) -> Arc<Group> {
    Arc::new(Group {
        patience: Duration::ZERO,
        ..Group::new(3, max_lag)
    })
}

#[test]
fn the_first_update_waits_for_all_replicas_and_later_ones_for_those_that_took_part() {
    let group = impatient(None);
    let now = Duration::ZERO;
    assert!(!group.wait(now), "two are missing");
    let first = Replica::join(&group);
    first.begin(0);
    assert!(!group.wait(now), "one is missing");
    let second = Replica::join(&group);
    assert!(!group.wait(now), "it has no rollouts");
    second.begin(0);
    assert!(group.wait(now));
    assert!(group.join(mpsc::channel(1).0).is_none(), "no more places");
    // Both take part, and are cut off because they send nothing.
    leader(&group).update(&batch(), 0.0).expect("finite");
    assert_eq!(group.replicas(), (0, 2));
    assert!(first.membership.begin(Begin::default()).is_err());
    assert!(group.wait(now), "a replica that has gone is not waited for");
    drop(second);
    let third = Replica::join(&group);
    assert!(group.wait(now), "nor is one that has never taken part");
    drop(third);
    assert_eq!(group.replicas(), (0, 2));
}

#[test]
fn a_replica_that_has_no_rollouts_in_time_is_not_waited_for_until_it_has_some() {
    let group = impatient(None);
    let (_idle, busy) = (Replica::join(&group), Replica::join(&group));
    busy.begin(0);
    assert!(!group.wait(Duration::ZERO));
    group.go_on();
    assert!(group.wait(Duration::ZERO));
}

#[test]
fn rollouts_beyond_the_bound_are_answered_with_the_newest_policy() {
    let group = impatient(Some(2));
    let mut leader = leader(&group);
    for _ in 0..5 {
        leader.update(&batch(), 0.0).expect("finite");
    }
    let mut replica = Replica::join(&group);
    replica.begin(2);
    let before = parameters(&leader);
    leader.update(&batch(), 0.0).expect("finite");
    let heard = replica.heard().expect("it stays a member");
    let from_learner::Content::Policy(policy) = heard else {
        panic!("it does not take part");
    };
    assert_eq!(policy.version, 5);
    assert_eq!(policy.parameters, to_bytes(before));
    replica.begin(4);
    leader.update(&batch(), 0.0).expect("finite");
    let heard = replica.heard().expect("a message");
    assert!(
        matches!(heard, from_learner::Content::Start(_)),
        "{heard:?}"
    );
}

#[test]
fn replicas_that_leave_or_are_late_leave_the_update_to_the_others() {
    for leaves in [false, true] {
        let group = impatient(None);
        let mut replica = Replica::join(&group);
        replica.begin(0);
        let mut leader = leader(&group);
        if leaves {
            drop(replica.membership);
            leader.update(&batch(), 0.0).expect("finite");
        } else {
            leader.update(&batch(), 0.0).expect("finite");
            let heard = replica.heard().expect("the update begins");
            assert!(matches!(heard, from_learner::Content::Start(_)));
            let status = replica.heard().expect_err("it is cut off");
            assert!(status.message().contains("in time"), "{status}");
        }
        assert_eq!(parameters(&leader), alone());
        assert_eq!(group.take_fresh(), 0);
    }
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let group = impatient(None);
    let replica = Replica::join(&group);
    let part = Part {
        rollouts: 3,
        gradient: vec![0.0; ParameterLayout::of(&shape()).len()],
    };
    let taken = replica.membership.part(0, part.clone());
    assert!(taken.is_err(), "no update has begun");
    replica.begin(0);
    let start = Start::default();
    assert_eq!(group.start(&start).len(), 1);
    assert!(replica.membership.part(1, part.clone()).is_err());
    replica.membership.part(0, part).expect("this update");
    let sums = Sums {
        updates: 0,
        values: vec![1.0; 2],
    };
    replica.membership.sums(sums).expect("this update");
    let mut within = vec![replica.membership.index];
    let sums = group.collect(&mut within, |own| &mut own.sums, |own| own.len() == 3);
    assert!(sums.is_empty() && within.is_empty());
    assert_eq!(group.replicas(), (0, 2));
}

/// As one that is stopped between two updates: its rollouts are not learnt from in vain.
#[test]
fn the_part_of_a_replica_that_has_left_counts() {
    let group = impatient(None);
    let replica = Replica::join(&group);
    replica.begin(0);
    let mut within = group.start(&Start::default());
    let length = ParameterLayout::of(&shape()).len();
    let part = Part {
        rollouts: 3,
        gradient: vec![1.0; length],
    };
    replica
        .membership
        .part(0, part.clone())
        .expect("this update");
    drop(replica);
    assert_eq!(group.replicas(), (0, 2));
    group.go_on();
    assert!(group.wait(Duration::ZERO), "it is not waited for");
    let parts = group.collect(&mut within, |own| &mut own.part, |_| true);
    assert_eq!(parts, [(part, 2)]);
    assert!(group.lock().members.is_empty());
}
