//! A canary on live flows: an agent of its own serves the flows of emulated links under the
//! kernel, with the policy in force and the candidate.

use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use cc_core::{
    canary::{CanaryBy, Finding},
    policy::PolicySpec,
    status::{CanaryStatus, Command, Snapshot},
};
use cc_sim::scenario::Scenario;
use cc_testbed::{
    evaluate::{Agent, Control, EvaluateError, Evaluation, Jobs, Scheme, ServedPolicy, evaluate},
    summary::Platform,
};

use super::{
    LoopError,
    config::{LoopConfig, Phase, duration, shared},
    figures::{PhaseReport, Tried},
    gate::CanaryEnd,
};

/// Time between two looks at the canary.
const LOOK: Duration = Duration::from_millis(500);
/// Time within which all flows of a phase must be served.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long flows are up when the canary starts: in its first block they are to show their shares,
/// and not their slow start.
const SETTLING: Duration = Duration::from_secs(5);
/// How much longer than the canary its flows run: until they are up, and after its end.
const MARGIN: Duration = Duration::from_secs(45);

/// What a canary is tried with.
pub(super) struct Trying<'a> {
    pub(super) config: &'a LoopConfig,
    pub(super) links: &'a [Scenario],
    /// Path of the agent's program, `None` for the one beside this program.
    pub(super) program: Option<&'a Path>,
    pub(super) command: &'a str,
    pub(super) dir: &'a Path,
    pub(super) seed: u64,
    pub(super) cancel: &'a AtomicBool,
}

impl Trying<'_> {
    /// Tries `candidate` beside `policy`, phase by phase, and promotes it if it passes all of them.
    /// `watch` sees the canary while it runs.
    pub(super) fn carry_out(
        &self,
        policy: &ServedPolicy,
        candidate: &PolicySpec,
        watch: &mut dyn FnMut(&CanaryStatus),
    ) -> Result<Tried, LoopError> {
        let options = [
            "--canary-block".to_owned(),
            self.config.canary.block_s.to_string(),
            "--canary-units".to_owned(),
            self.config.canary.units.to_string(),
        ];
        let name = format!("rl{}c", std::process::id());
        fs::create_dir_all(self.dir)
            .map_err(LoopError::system("making the directory", self.dir))?;
        let options = options.map(Into::into);
        let agent = Agent::start(self.program, &name, policy, &options, self.dir)?;
        let mut phases = Vec::new();
        for (number, phase) in self.config.canary.phases.iter().enumerate() {
            let (finding, report, news) = self.phase(&agent, number, phase, candidate, watch)?;
            phases.push(report);
            let end = match finding {
                None => CanaryEnd::Withdrawn { reason: news },
                Some(Finding::NotWorse) if phases.len() == self.config.canary.phases.len() => {
                    ask(&agent, Command::Promote)?;
                    CanaryEnd::Passed
                }
                Some(Finding::NotWorse) => {
                    ask(&agent, Command::Withdraw)?;
                    continue;
                }
                Some(Finding::Open | Finding::Worse) => {
                    ask(&agent, Command::Withdraw)?;
                    CanaryEnd::Open { phase: number }
                }
            };
            return Ok(Tried { end, phases });
        }
        Err(LoopError::Run(
            "canary.phase is empty: give at least one".to_owned(),
        ))
    }

    /// Runs a phase. Returns what was found, `None` where the candidate was withdrawn, and the
    /// agent's words on that.
    fn phase(
        &self,
        agent: &Agent,
        number: usize,
        phase: &Phase,
        candidate: &PolicySpec,
        watch: &mut dyn FnMut(&CanaryStatus),
    ) -> Result<(Option<Finding>, PhaseReport, String), LoopError> {
        let evaluation = Evaluation {
            on: Platform::Kernel,
            // The agent's congestion control, by its name.
            schemes: vec![Scheme {
                name: agent.control().to_owned(),
                control: Control::Named,
            }],
            scenarios: shared(self.links, phase.flows),
            policy: PolicySpec::Default,
            serving: None,
            seconds: Some(duration(phase.seconds) + MARGIN),
            runs: 1,
            seed: self.seed.wrapping_add(number as u64),
            jobs: Jobs::Count(self.links.len()),
            dir: self.dir.join(format!("phase-{}", number + 1)),
            fresh: false,
            agent: None,
            record: None,
            command: self.command.to_owned(),
        };
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let flows = scope.spawn(|| evaluate(&evaluation, &stop, |_| {}));
            let outcome = self.follow(agent, phase, candidate, &|| flows.is_finished(), watch);
            stop.store(true, Ordering::Relaxed);
            let ran = flows.join();
            let ran = ran.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            // What broke the flows says more than what followed from it.
            ran.map(drop)
                .map_err(|error: EvaluateError| LoopError::from(error))?;
            outcome
        })
    }

    /// Starts the canary once all flows are up, and follows it to its end.
    fn follow(
        &self,
        agent: &Agent,
        phase: &Phase,
        candidate: &PolicySpec,
        are_over: &dyn Fn() -> bool,
        watch: &mut dyn FnMut(&CanaryStatus),
    ) -> Result<(Option<Finding>, PhaseReport, String), LoopError> {
        let expected = self.links.len() * phase.flows;
        let deadline = Instant::now() + PATIENCE;
        while look(agent)?.live_flows < expected {
            self.check(are_over)?;
            if Instant::now() > deadline {
                return Err(LoopError::Command(format!(
                    "fewer than {expected} flows are served after {} s",
                    PATIENCE.as_secs()
                )));
            }
            thread::sleep(LOOK);
        }
        let settled = Instant::now() + SETTLING;
        while Instant::now() < settled {
            self.check(are_over)?;
            thread::sleep(LOOK);
        }
        let file = candidate.to_string().into();
        let start = Command::StartCanary {
            file,
            percent: phase.percent,
            by: CanaryBy::Time,
        };
        ask(agent, start)?;
        let begun = Instant::now();
        let mut latest: Option<CanaryStatus> = None;
        loop {
            thread::sleep(LOOK);
            self.check(are_over)?;
            let Snapshot { canary, news, .. } = look(agent)?;
            let finding = canary.as_ref().map(|canary| canary.finding);
            if let Some(canary) = canary {
                watch(&canary);
                latest = Some(canary);
            }
            let took = begun.elapsed();
            // The agent withdraws what is worse by itself.
            let is_open = matches!(finding, Some(Finding::Open | Finding::Worse));
            if is_open && took < duration(phase.seconds) {
                continue;
            }
            let report = PhaseReport {
                percent: phase.percent,
                flows: phase.flows,
                seconds: took.as_secs_f64(),
                status: latest,
            };
            return Ok((finding, report, news.unwrap_or_default()));
        }
    }

    /// Whether the canary is to go on.
    fn check(&self, are_over: &dyn Fn() -> bool) -> Result<(), LoopError> {
        if self.cancel.load(Ordering::Relaxed) {
            return Err(LoopError::Interrupted);
        }
        match are_over() {
            true => Err(LoopError::Command(
                "the flows ended before it did".to_owned(),
            )),
            false => Ok(()),
        }
    }
}

fn look(agent: &Agent) -> Result<Snapshot, LoopError> {
    agent
        .status()
        .map_err(|error| LoopError::Command(error.to_string()))
}

fn ask(agent: &Agent, command: Command) -> Result<String, LoopError> {
    let told = command.to_string();
    let outcome = agent.command(command);
    outcome.map_err(|error| LoopError::Command(format!("`{told}`: {error}")))
}
