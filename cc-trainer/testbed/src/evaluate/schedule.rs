//! The order of runs, and which of them go at the same time.
//!
//! A [`Schedule`] is pure: it decides which run may start next, and the caller reports when one has
//! ended. The order is interleaved (the first run of every scheme on every scenario, then the
//! second …), so that a host whose speed drifts affects all schemes equally. Runs share the host as
//! long as their packets stay punctual.

use std::collections::VecDeque;

use cc_sim::scenario::{Direction, MTU, Scenario, Service};

/// Share of a core that a run takes at any rate: timers, samples and an agent.
const CORES_PER_RUN: f64 = 0.05;
/// Share of a core that a run takes per Mbit/s of its link: sender, receiver and both directions of
/// the link.
const CORES_PER_MBPS: f64 = 0.006;
/// Share of the host that all runs may take together; the rest keeps their packets punctual.
const SHARE: f64 = 0.6;
/// Most runs at the same time when the number is not given.
const MOST: usize = 6;
/// Factor by which the cost of a disturbed run grows when it is repeated, so that fewer others run
/// beside it.
const MORE_ROOM: f64 = 3.0;

/// Number of runs at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Jobs {
    /// As many as the host has room for.
    #[default]
    Auto,
    /// Exactly this many, whether or not the host has room.
    Count(usize),
}

/// One run to carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Job {
    /// Number of the run among those of its scheme on its scenario, from 0.
    pub run: u32,
    /// Index of the scenario among those of the evaluation.
    pub scenario: usize,
    /// Index of the scheme among those under test.
    pub scheme: usize,
}

/// Decides which run starts next.
#[derive(Clone, Debug)]
pub struct Schedule {
    waiting: VecDeque<(Job, f64)>,
    /// Runs to repeat, which start when no other run waits.
    again: VecDeque<(Job, f64)>,
    running: Vec<(Job, f64)>,
    budget: f64,
    most: usize,
}

/// Estimated number of cores that a run on this scenario takes; infinite on a link without a rate.
pub fn cost(scenario: &Scenario) -> f64 {
    let Direction { service, queue, .. } = &scenario.forward;
    let mut rate = service.mean_bits_per_second().unwrap_or(f64::INFINITY);
    // All opportunities of a millisecond come at once, and only waiting packets can use them.
    if let (Service::Opportunities(_), Some(packets)) = (service, queue.packets) {
        rate = rate.min(f64::from(packets) * f64::from(MTU) * 8e3);
    }
    CORES_PER_RUN + CORES_PER_MBPS * rate / 1e6
}

/// All runs of `schemes` schemes on `scenarios` scenarios, interleaved.
pub fn interleaved(scenarios: usize, schemes: usize, runs: u32) -> impl Iterator<Item = Job> {
    (0..runs).flat_map(move |run| {
        (0..scenarios).flat_map(move |scenario| {
            (0..schemes).map(move |scheme| Job {
                run,
                scenario,
                scheme,
            })
        })
    })
}

impl Schedule {
    /// A schedule of `jobs`, each with its [`cost`], on a host with `cores` cores.
    pub fn new(jobs: impl IntoIterator<Item = (Job, f64)>, limit: Jobs, cores: usize) -> Self {
        let jobs = jobs.into_iter();
        let (waiting, budget, most) = match limit {
            Jobs::Auto => (jobs.collect(), SHARE * cores as f64, MOST),
            Jobs::Count(count) => {
                let equal = jobs.map(|(job, _)| (job, 1.0));
                (equal.collect(), count.max(1) as f64, count.max(1))
            }
        };
        Self {
            waiting,
            again: VecDeque::new(),
            running: Vec::new(),
            budget,
            most,
        }
    }

    /// Starts the next run; `None` when none is left or none fits beside those in progress.
    pub fn start(&mut self) -> Option<Job> {
        if self.running.len() >= self.most {
            return None;
        }
        let next = match self.waiting.front() {
            // A run may overtake others of its round that do not fit now.
            Some((Job { run: round, .. }, _)) => {
                let next = self
                    .waiting
                    .iter()
                    .take_while(|(job, _)| job.run == *round)
                    .position(|&(_, cost)| self.fits(cost))?;
                self.waiting.remove(next)?
            }
            None => {
                let &(_, cost) = self.again.front()?;
                if !self.fits(cost) {
                    return None;
                }
                self.again.pop_front()?
            }
        };
        self.running.push(next);
        Some(next.0)
    }

    /// Reports that a run has ended. With `repeat` it is scheduled again, with fewer runs beside
    /// it.
    pub fn end(&mut self, job: Job, repeat: bool) {
        let ended = self.running.extract_if(.., |(running, _)| *running == job);
        for (job, cost) in ended {
            if repeat {
                self.again.push_back((job, MORE_ROOM * cost));
            }
        }
    }

    /// Whether nothing runs and nothing waits.
    pub fn is_over(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty() && self.again.is_empty()
    }

    /// Whether a run of this cost fits now. A run always fits on an idle host, however much it
    /// takes.
    fn fits(&self, cost: f64) -> bool {
        let taken: f64 = self.running.iter().map(|(_, cost)| cost).sum();
        self.running.is_empty() || taken + cost <= self.budget
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use cc_sim::scenario;

    fn job(run: u32, scenario: usize) -> Job {
        Job {
            run,
            scenario,
            scheme: 0,
        }
    }

    #[test]
    fn rounds_run_one_after_the_other() {
        let order: Vec<_> = interleaved(2, 2, 2)
            .map(|job| (job.run, job.scenario, job.scheme))
            .collect();
        let expected = [
            (0, 0, 0),
            (0, 0, 1),
            (0, 1, 0),
            (0, 1, 1),
            (1, 0, 0),
            (1, 0, 1),
            (1, 1, 0),
            (1, 1, 1),
        ];
        assert_eq!(order, expected);
    }

    #[test]
    fn a_short_queue_makes_a_link_cheap_if_its_opportunities_come_together() {
        let cost = |name| {
            let scenarios = scenario::load(name).expect("built in");
            super::cost(&scenarios[0])
        };
        assert_eq!(
            cost("pantheon/policer-108-rtt20"),
            cost("pantheon/policer-12-rtt20")
        );
        assert!(cost("pantheon/india-india") > 4.0 * cost("pantheon/bdp-1"));
        assert_eq!(cost("fast/ceiling"), f64::INFINITY);
    }

    #[test]
    fn a_large_run_runs_alone_and_is_overtaken_within_its_round_only() {
        let jobs = [(job(1, 0), 5.0), (job(1, 1), 0.1), (job(2, 0), 0.1)];
        let mut schedule = Schedule::new(jobs, Jobs::Auto, 2);
        assert_eq!(schedule.start(), Some(job(1, 0)));
        assert_eq!(schedule.start(), None);
        schedule.end(job(1, 0), false);
        let mut schedule = Schedule::new([jobs[1], jobs[0], jobs[2]], Jobs::Auto, 2);
        assert_eq!(schedule.start(), Some(job(1, 1)));
        assert_eq!(schedule.start(), None, "the next round waits for this one");
    }

    #[test]
    fn a_repeated_run_comes_last_with_fewer_beside_it() {
        let costs = [0.19, 0.19, 0.3];
        let jobs = [0, 1, 2].map(|scenario| (job(1, scenario), costs[scenario]));
        let mut schedule = Schedule::new(jobs, Jobs::Auto, 2);
        let first = schedule.start().expect("one fits");
        schedule.end(first, true);
        let others = [schedule.start(), schedule.start()].map(|job| job.expect("it fits"));
        assert!(!others.contains(&first));
        assert_eq!(
            schedule.start(),
            Some(first),
            "0.57 fits beside 0.19 and 0.3"
        );
        schedule.end(others[0], true);
        schedule.end(others[1], true);
        assert_eq!(schedule.start(), Some(others[0]), "0.57 fits beside 0.57");
        assert_eq!(schedule.start(), None, "0.9 does not");
        schedule.end(first, true);
        assert_eq!(schedule.start(), None, "nor beside one of the two");
        schedule.end(others[0], false);
        assert_eq!(schedule.start(), Some(others[1]));
        assert_eq!(schedule.start(), None, "1.71 goes alone");
        schedule.end(others[1], false);
        assert_eq!(schedule.start(), Some(first));
        schedule.end(first, false);
        assert!(schedule.is_over());
    }

    #[test]
    fn a_repeated_run_is_alone_where_two_may_run() {
        let jobs = [(job(1, 0), 0.1), (job(1, 1), 0.1)];
        let mut schedule = Schedule::new(jobs, Jobs::Count(2), 2);
        let first = schedule.start().expect("one fits");
        let second = schedule.start().expect("two fit");
        schedule.end(first, true);
        assert_eq!(schedule.start(), None, "not beside another");
        schedule.end(second, false);
        assert_eq!(schedule.start(), Some(first));
    }

    #[test]
    fn the_given_number_of_runs_go_at_the_same_time() {
        let jobs = (0..9).map(|scenario| (job(1, scenario), f64::INFINITY));
        let mut schedule = Schedule::new(jobs, Jobs::Count(4), 1);
        assert_eq!(std::iter::from_fn(|| schedule.start()).count(), 4);
    }

    proptest! {
        #[test]
        fn everything_runs_once_within_the_budget(
            costs in prop::collection::vec(prop_oneof![0.05..2.0, Just(f64::INFINITY)], 1..20),
            runs in 1u32..4,
            cores in 1usize..9,
            picks in prop::collection::vec(0usize..8, 0..200),
        ) {
            let jobs = interleaved(costs.len(), 1, runs);
            let jobs: Vec<_> = jobs.map(|job| (job, costs[job.scenario])).collect();
            let mut schedule = Schedule::new(jobs.clone(), Jobs::Auto, cores);
            let mut running: Vec<Job> = Vec::new();
            let mut started: HashMap<Job, u32> = HashMap::new();
            let mut picks = picks.into_iter();
            loop {
                while let Some(job) = schedule.start() {
                    *started.entry(job).or_default() += 1;
                    running.push(job);
                    let taken: f64 = running.iter().map(|job| costs[job.scenario]).sum();
                    prop_assert!(running.len() == 1 || taken <= SHARE * cores as f64);
                    prop_assert!(running.len() <= MOST);
                }
                if running.is_empty() {
                    break;
                }
                let ended = running.remove(picks.next().unwrap_or(0) % running.len());
                schedule.end(ended, false);
            }
            prop_assert!(schedule.is_over());
            prop_assert!(jobs.iter().all(|(job, _)| started[job] == 1));
        }
    }
}
