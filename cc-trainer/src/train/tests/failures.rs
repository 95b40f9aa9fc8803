//! Runs whose device fails or whose gradient is not finite: they end, say so, and can be continued.

use std::{
    panic::{self, AssertUnwindSafe},
    sync::mpsc,
    thread,
    time::Duration,
};

use super::*;
use crate::{
    learner::LearnerState,
    model::{self, Device, DeviceFailure, RmsProp, Shape, StepError},
};

/// How long a test waits for a run before it fails.
const DEADLINE: Duration = Duration::from_secs(120);

/// The ways in which a test's device fails.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// The optimiser's step returns an error.
    Step,
    /// The forward pass returns an error.
    Forward,
    /// The optimiser's step panics in its update.
    Panic,
    /// The gradient of the update is not a number.
    Gradient,
    /// The step of the update makes parameters infinite.
    Parameters,
}

/// A device on the CPU with a fault in the update after some others.
struct Faulty {
    cpu: Box<dyn Device>,
    fault: Fault,
    /// Number of updates before the fault.
    left: u64,
}

impl Faulty {
    fn is_due(&self, fault: Fault) -> bool {
        self.left == 0 && self.fault == fault
    }

    fn failure(&self) -> Result<(), DeviceFailure> {
        Err(DeviceFailure {
            call: "the call of a test".to_owned(),
            reason: "it was taken away".to_owned(),
        })
    }
}

impl Device for Faulty {
    fn shape(&self) -> &Shape {
        self.cpu.shape()
    }

    fn set_parameters(&mut self, parameters: &[f32]) -> Result<(), DeviceFailure> {
        self.cpu.set_parameters(parameters)
    }

    fn parameters(&self, into: &mut Vec<f32>) -> Result<(), DeviceFailure> {
        self.cpu.parameters(into)
    }

    fn moments(&self, into: &mut Vec<f32>) -> Result<(), DeviceFailure> {
        self.cpu.moments(into)
    }

    fn set_moments(&mut self, moments: &[f32]) -> Result<(), DeviceFailure> {
        self.cpu.set_moments(moments)
    }

    fn forward(
        &mut self,
        input: &Sequences<'_>,
        output: &mut Outputs,
    ) -> Result<(), DeviceFailure> {
        if self.is_due(Fault::Forward) {
            self.failure()?;
        }
        self.cpu.forward(input, output)
    }

    fn backward(
        &mut self,
        input: &Sequences<'_>,
        d_logits: &[f32],
        d_baseline: &[f32],
    ) -> Result<(), DeviceFailure> {
        let mut d_logits = d_logits.to_vec();
        if self.is_due(Fault::Gradient) {
            d_logits[3] = f32::NAN;
        }
        self.cpu.backward(input, &d_logits, d_baseline)
    }

    fn gradient(&self, into: &mut Vec<f32>) -> Result<(), DeviceFailure> {
        self.cpu.gradient(into)
    }

    fn set_gradient(&mut self, gradient: &[f32]) -> Result<(), DeviceFailure> {
        self.cpu.set_gradient(gradient)
    }

    fn step(&mut self, optimiser: &RmsProp) -> Result<f32, StepError> {
        if self.is_due(Fault::Step) {
            self.failure()?;
        }
        assert!(
            !self.is_due(Fault::Panic),
            "the panic that this test asks for"
        );
        let optimiser = RmsProp {
            learning_rate: match self.is_due(Fault::Parameters) {
                true => f32::INFINITY,
                false => optimiser.learning_rate,
            },
            ..*optimiser
        };
        self.left = self.left.saturating_sub(1);
        self.cpu.step(&optimiser)
    }
}

/// A run on `actors` threads that writes a checkpoint after each update.
fn saving(dir: &Path, actors: usize, when_full: config::WhenFull) -> Training {
    let mut training = small(dir, 2000);
    training.overrides.actors = Some(actors);
    if let Some(config) = &mut training.config {
        config.checkpoint_seconds = 1e-9;
        config.actor.when_full = when_full;
    }
    training
}

/// Runs with a device that fails after `left` updates: the run's result, or `None` if it panicked.
/// Fails if the run does not end.
fn run_faulty(training: Training, fault: Fault, left: u64) -> Option<Result<Record, TrainError>> {
    let (ended, end) = mpsc::channel();
    thread::spawn(move || {
        let result = panic::catch_unwind(AssertUnwindSafe(|| {
            let mut run = Run::open(&training)?;
            let shape = run.record.shape.clone();
            let mut cpu = model::device(DeviceKind::Cpu, &shape, 1)?;
            let mut parameters = Vec::new();
            run.learner
                .device()
                .parameters(&mut parameters)
                .expect("a CPU");
            cpu.set_parameters(&parameters).expect("a CPU");
            let device = Faulty { cpu, fault, left };
            let settings = run.record.config.learner.clone();
            let state = LearnerState::new(run.tasks.len(), &settings);
            run.learner = Learner::new(Box::new(device), settings, state, 0);
            run.complete(&AtomicBool::new(false), &mut |_| {})
        }));
        // The test may have failed and gone.
        let _ = ended.send(result.ok());
    });
    end.recv_timeout(DEADLINE).expect("the run ends")
}

/// Every way of acting: in turns, and on threads under both queue policies.
const WAYS: [(usize, config::WhenFull); 3] = [
    (0, config::WhenFull::DropOldest),
    (2, config::WhenFull::DropOldest),
    (2, config::WhenFull::Wait),
];

#[test]
fn a_device_that_fails_ends_the_run_with_a_message() {
    for (actors, when_full) in WAYS {
        for fault in [Fault::Step, Fault::Forward] {
            let dir = tempfile::tempdir().expect("a scratch directory");
            let training = saving(dir.path(), actors, when_full);
            let result = run_faulty(training, fault, 5).expect("no panic");
            let message = result.expect_err("the device failed").to_string();
            let beginning =
                "step 200: the device cpu failed, the call of a test: it was taken away; the last";
            assert!(message.starts_with(beginning), "{message}");
            assert!(message.ends_with("continues at step 200"), "{message}");
            assert_eq!(saved(dir.path()).header.statistics.steps, 200);

            // A device that works continues the run.
            let record = run(&saving(dir.path(), actors, when_full));
            assert_eq!((record.finish, record.last.updates), (Finish::Steps, 50));
        }
    }
}

#[test]
fn a_failure_before_the_first_checkpoint_says_that_there_is_none() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    let training = saving(dir.path(), 0, config::WhenFull::Wait);
    let result = run_faulty(training, Fault::Step, 0).expect("no panic");
    let message = result.expect_err("the device failed").to_string();
    assert!(message.contains("there is no checkpoint in"), "{message}");
    assert!(!dir.path().join("checkpoint.bin").exists());
    run(&saving(dir.path(), 0, config::WhenFull::Wait));
}

#[test]
fn a_learner_that_panics_leaves_no_actor_behind() {
    for (actors, when_full) in WAYS {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let training = saving(dir.path(), actors, when_full);
        let result = run_faulty(training, Fault::Panic, 5);
        assert!(result.is_none(), "{result:?}");
        assert_eq!(saved(dir.path()).header.statistics.steps, 200);
    }
}

/// Neither a gradient nor parameters that are not finite reach the checkpoint, which is due after
/// every update.
#[test]
fn what_is_not_finite_is_not_saved() {
    for (actors, when_full) in WAYS {
        for (fault, what, steps) in [
            (Fault::Gradient, "the gradient is not a finite number", 200),
            (Fault::Parameters, "a parameter is not a finite number", 240),
        ] {
            let dir = tempfile::tempdir().expect("a scratch directory");
            let training = saving(dir.path(), actors, when_full);
            let result = run_faulty(training, fault, 5).expect("no panic");
            let message = result.expect_err("it diverged").to_string();
            let beginning = format!("step {steps}: training diverged after ");
            assert!(message.starts_with(&beginning), "{message}");
            assert!(message.contains(what), "{message}");
            assert!(message.ends_with("continues at step 200"), "{message}");

            let left = saved(dir.path());
            assert_eq!(left.header.statistics.steps, 200);
            for number in left.parameters.iter().chain(&left.moments) {
                assert!(number.is_finite(), "{fault:?}");
            }
            let record = run(&saving(dir.path(), actors, when_full));
            assert_eq!(record.finish, Finish::Steps);
        }
    }
}

#[test]
fn a_checkpoint_of_another_network_is_refused() {
    let dir = tempfile::tempdir().expect("a scratch directory");
    run(&small(dir.path(), 40));
    let path = dir.path().join("checkpoint.bin");
    let mut checkpoint = saved(dir.path());
    checkpoint.header.record.shape.privileged = 12;
    fs::write(&path, checkpoint.encode()).expect("a file");
    let error = train(&small(dir.path(), 80), &AtomicBool::new(false), &mut |_| {})
        .expect_err("another network");
    let message = error.to_string();
    assert!(message.contains("(privileged: 0, not 12)"), "{message}");
}
