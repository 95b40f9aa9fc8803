//! What an agent's host does about announcements: [`Follower`], without I/O.

use std::fmt;

use cc_core::canary::{CanaryBy, Finding};
use serde::{Deserialize, Serialize};

use crate::{Announcement, CanaryTerms, Signed};

/// What the follower remembers, also beyond its end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Follower {
    /// The announcement in force, and how far it has come; `None` before the first.
    accepted: Option<Accepted>,
    /// The run of the agent that [`Stage`] is about; `None` before an agent was seen.
    run: Option<Run>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Accepted {
    announcement: Announcement,
    digest: String,
    stage: Stage,
    /// SHA-256 of the former announcement's policy, if that was a candidate when this one came.
    former_candidate: Option<String>,
}

/// A run of the agent: its process, and the longest time that it was seen running for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Run {
    pid: u32,
    uptime_s: f64,
}

/// How far an announcement has come on this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// The agent was not asked yet.
    Announced,
    /// The policy is the candidate of a canary.
    Trying,
    /// The agent was asked to serve the policy to all flows. An operator may have changed that
    /// since, which stays as it is.
    Serving,
    /// The canary ended without the policy.
    Withdrawn,
    /// The agent refused the policy, for this reason. Another run of it is asked again.
    Refused(String),
    /// An operator has rolled back from the policy on this host. It stays out of service until an
    /// operator brings it back, or another one is announced.
    RolledBack,
}

/// How far it has come, after "it is not in service: ".
impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Announced => f.write_str("the agent was not asked yet"),
            Self::Trying => f.write_str("its canary runs"),
            Self::Serving => f.write_str("an operator has changed it since"),
            Self::Withdrawn => f.write_str("its canary ended without it"),
            Self::Refused(reason) => write!(f, "the agent refuses it: {reason}"),
            Self::RolledBack => f.write_str("an operator has rolled it back"),
        }
    }
}

/// What the follower looks at in the state of the running agent.
#[derive(Clone, Debug, PartialEq)]
pub struct Agent<'a> {
    /// Process id of the running agent.
    pub pid: u32,
    /// Time since its start, s.
    pub uptime_s: f64,
    /// SHA-256 of the policy in service, in hexadecimal digits; `None` for a policy without a file.
    pub sha256: Option<&'a str>,
    /// SHA-256 of the policies that an operator has rolled back from.
    pub rolled_back: Vec<&'a str>,
    /// The canary that runs; `None` when none does.
    pub canary: Option<Canary<'a>>,
}

/// A canary of the running agent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Canary<'a> {
    /// Description of its candidate, which contains the name of the policy's file.
    pub candidate: &'a str,
    /// What has been found of the candidate so far.
    pub finding: Finding,
}

/// What the agent is to be asked.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// To serve the announced policy to all flows.
    Serve,
    /// To try the announced policy beside the one in service.
    Try {
        /// The candidate's share of the flows, paths or hosts, percent.
        percent: f64,
        /// What is compared, and hence assigned to an arm.
        by: CanaryBy,
    },
    /// To serve the candidate to all flows.
    Promote,
    /// To end the canary of the former announcement, which this one replaces.
    Withdraw,
}

/// What became of an announcement that was read from the channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It is newer than the one in force, and has taken its place.
    New,
    /// It is the one in force.
    Known,
    /// It is older than one that this host has seen, which somebody has taken away: ignored.
    Replayed {
        /// Number of the announcement that was found.
        found: u64,
        /// The number of the announcement in force, which stays.
        known: u64,
    },
    /// It has the number of the one in force, but says something else: ignored.
    Forked,
}

impl Follower {
    /// Takes an announcement whose signature was checked.
    pub fn hear(&mut self, signed: Signed) -> Turn {
        let Signed {
            announcement,
            digest,
        } = signed;
        let mut former_candidate = None;
        if let Some(known) = &self.accepted {
            let (found, known_one) = (announcement.sequence, known.announcement.sequence);
            if found < known_one {
                return Turn::Replayed {
                    found,
                    known: known_one,
                };
            }
            if found == known_one {
                return match digest == known.digest {
                    true => Turn::Known,
                    false => Turn::Forked,
                };
            }
            former_candidate = match known.stage {
                Stage::Trying => Some(known.announcement.sha256.clone()),
                _ => known.former_candidate.clone(),
            };
        }
        self.accepted = Some(Accepted {
            announcement,
            digest,
            stage: Stage::Announced,
            former_candidate,
        });
        Turn::New
    }

    /// Looks at the running agent, and returns what to ask of it now; `None` for nothing. The
    /// outcome is to be told to [`Self::answered`].
    pub fn look(&mut self, agent: &Agent<'_>) -> Option<Request> {
        let same_run = self
            .run
            .is_some_and(|run| run.pid == agent.pid && run.uptime_s <= agent.uptime_s);
        self.run = Some(Run {
            pid: agent.pid,
            uptime_s: agent.uptime_s,
        });
        let accepted = self.accepted.as_mut()?;
        let announcement = &accepted.announcement;
        let serves_it = agent.sha256 == Some(announcement.sha256.as_str());
        let tries = |canary: &Canary<'_>| canary.candidate.contains(&announcement.sha256);
        if serves_it && accepted.stage == Stage::RolledBack {
            accepted.stage = Stage::Serving;
        }
        let is_rolled_back = agent.rolled_back.contains(&announcement.sha256.as_str());
        if is_rolled_back && !serves_it && !agent.canary.as_ref().is_some_and(tries) {
            accepted.stage = Stage::RolledBack;
            return None;
        }
        if !same_run {
            // It has begun with the policy of its configuration.
            accepted.stage = match accepted.stage {
                Stage::Trying | Stage::Refused(_) => Stage::Announced,
                Stage::Serving if serves_it => Stage::Serving,
                Stage::Serving if agent.canary.is_none() => return Some(Request::Serve),
                Stage::Serving => {
                    // Not asked until that canary ends: then as when it was seen first.
                    self.run = None;
                    return None;
                }
                Stage::Announced | Stage::Withdrawn | Stage::RolledBack => accepted.stage.clone(),
            };
        }
        match (&accepted.stage, &agent.canary) {
            (Stage::Announced, None) if serves_it => accepted.stage = Stage::Serving,
            (Stage::Announced, None) => {
                return Some(match &announcement.canary {
                    None => Request::Serve,
                    Some(CanaryTerms { percent, by }) => Request::Try {
                        percent: *percent,
                        by: *by,
                    },
                });
            }
            // A canary that was begun before this process forgot it, or by hand with this file.
            (Stage::Announced, Some(canary)) if tries(canary) => accepted.stage = Stage::Trying,
            (Stage::Announced, Some(canary)) => {
                let former = accepted.former_candidate.as_ref();
                let is_former = former.is_some_and(|sha256| canary.candidate.contains(sha256));
                return is_former.then_some(Request::Withdraw);
            }
            (Stage::Trying, Some(canary)) if tries(canary) => {
                return (canary.finding == Finding::NotWorse).then_some(Request::Promote);
            }
            (Stage::Trying, _) => {
                accepted.stage = match serves_it {
                    true => Stage::Serving,
                    false => Stage::Withdrawn,
                };
            }
            // Another canary is waited for, and what an operator has done since stays.
            _ => {}
        }
        None
    }

    /// Takes the outcome of what the agent was asked: `Err` is the reason of its refusal. What it
    /// did not answer at all is asked again at the next [`Self::look`].
    pub fn answered(&mut self, request: &Request, outcome: Result<(), String>) {
        let Some(accepted) = &mut self.accepted else {
            return;
        };
        match (request, outcome) {
            (Request::Serve | Request::Promote, Ok(())) => accepted.stage = Stage::Serving,
            (Request::Try { .. }, Ok(())) => accepted.stage = Stage::Trying,
            (Request::Serve | Request::Try { .. }, Err(reason)) => {
                accepted.stage = Stage::Refused(reason);
            }
            // The canary has ended, one way or the other: the next look says how.
            (Request::Promote, Err(_)) | (Request::Withdraw, _) => {}
        }
    }

    /// Forgets that the agent was seen, since it was not told what it was to be: the next look asks
    /// again.
    pub fn unanswered(&mut self) {
        self.run = None;
    }

    /// The announcement in force and how far it has come; `None` before the first.
    pub fn current(&self) -> Option<(&Announcement, &Stage)> {
        let accepted = self.accepted.as_ref()?;
        Some((&accepted.announcement, &accepted.stage))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn signed(sequence: u64, policy: &[u8], canary: Option<CanaryTerms>) -> Signed {
        let announcement = Announcement::new(sequence, 0, policy, "p", canary);
        Signed {
            digest: format!("{sequence} {}", announcement.sha256),
            announcement,
        }
    }

    fn terms() -> Option<CanaryTerms> {
        Some(CanaryTerms {
            percent: 5.0,
            by: CanaryBy::Time,
        })
    }

    const TRY: Request = Request::Try {
        percent: 5.0,
        by: CanaryBy::Time,
    };

    /// An agent that does as it is asked.
    struct Host {
        pid: u32,
        uptime_s: f64,
        sha256: Option<String>,
        rolled_back: Vec<String>,
        canary: Option<(String, Finding)>,
        asked: Vec<Request>,
    }

    impl Host {
        fn new() -> Self {
            Self {
                pid: 1,
                uptime_s: 0.0,
                sha256: None,
                rolled_back: Vec::new(),
                canary: None,
                asked: Vec::new(),
            }
        }

        fn restart(&mut self) {
            *self = Self {
                pid: self.pid + 1,
                rolled_back: std::mem::take(&mut self.rolled_back),
                asked: std::mem::take(&mut self.asked),
                ..Self::new()
            };
        }

        /// Looks once, and carries out what is asked.
        fn step(&mut self, follower: &mut Follower) -> Option<Request> {
            self.uptime_s += 1.0;
            let canary = self.canary.as_ref().map(|(candidate, finding)| Canary {
                candidate,
                finding: *finding,
            });
            let request = follower.look(&Agent {
                pid: self.pid,
                uptime_s: self.uptime_s,
                sha256: self.sha256.as_deref(),
                rolled_back: self.rolled_back.iter().map(String::as_str).collect(),
                canary,
            })?;
            let sha256 = follower.current().expect("it asks").0.sha256.clone();
            match request {
                Request::Serve | Request::Promote => {
                    self.canary = None;
                    self.sha256 = Some(sha256);
                }
                Request::Withdraw => self.canary = None,
                Request::Try { .. } => {
                    self.canary = Some((format!("/p/{sha256}.onnx: p"), Finding::Open));
                }
            }
            follower.answered(&request, Ok(()));
            self.asked.push(request.clone());
            Some(request)
        }
    }

    fn stage(follower: &Follower) -> &Stage {
        follower.current().expect("something was announced").1
    }

    #[test]
    fn nothing_is_asked_before_an_announcement() {
        assert_eq!(Host::new().step(&mut Follower::default()), None);
    }

    #[test]
    fn a_policy_is_served_once_and_what_an_operator_does_then_stays() {
        let (mut host, mut follower) = (Host::new(), Follower::default());
        assert_eq!(follower.hear(signed(1, b"a", None)), Turn::New);
        assert_eq!(host.step(&mut follower), Some(Request::Serve));
        assert_eq!(follower.hear(signed(1, b"a", None)), Turn::Known);
        assert_eq!(host.step(&mut follower), None);
        host.sha256 = Some("rolled back".into());
        assert_eq!(
            host.step(&mut follower),
            None,
            "the operator's decision stays"
        );
        host.restart();
        assert_eq!(
            host.step(&mut follower),
            Some(Request::Serve),
            "of this run only"
        );
        assert_eq!(host.step(&mut follower), None);
    }

    #[test]
    fn what_an_operator_has_rolled_back_stays_out_whatever_is_started_again() {
        let (mut host, mut follower) = (Host::new(), Follower::default());
        follower.hear(signed(1, b"a", None));
        assert_eq!(host.step(&mut follower), Some(Request::Serve));
        let announced = host.sha256.replace("the one before".into());
        host.rolled_back.extend(announced.clone());
        assert_eq!(host.step(&mut follower), None);
        assert_eq!(stage(&follower), &Stage::RolledBack);
        host.restart();
        assert_eq!(host.step(&mut follower), None, "another run of the agent");
        // A new announcement of the same file, and of a canary of it.
        follower.hear(signed(2, b"a", None));
        assert_eq!(host.step(&mut follower), None);
        follower.hear(signed(3, b"a", terms()));
        assert_eq!(host.step(&mut follower), None);
        assert_eq!(stage(&follower), &Stage::RolledBack);
        // The operator brings it back.
        (host.sha256, host.rolled_back) = (announced, Vec::new());
        assert_eq!(host.step(&mut follower), None);
        assert_eq!(stage(&follower), &Stage::Serving);
        // Another policy is another matter.
        host.rolled_back = host.sha256.clone().into_iter().collect();
        follower.hear(signed(4, b"b", None));
        assert_eq!(host.step(&mut follower), Some(Request::Serve));
    }

    #[test]
    fn a_candidate_is_promoted_when_it_is_not_worse() {
        let (mut host, mut follower) = (Host::new(), Follower::default());
        follower.hear(signed(1, b"a", terms()));
        assert_eq!(host.step(&mut follower), Some(TRY));
        assert_eq!(host.step(&mut follower), None, "nothing was found yet");
        host.canary.as_mut().expect("it runs").1 = Finding::Worse;
        assert_eq!(
            host.step(&mut follower),
            None,
            "the agent withdraws it itself"
        );
        host.canary.as_mut().expect("it runs").1 = Finding::NotWorse;
        assert_eq!(host.step(&mut follower), Some(Request::Promote));
        assert_eq!(host.step(&mut follower), None);
        assert_eq!(stage(&follower), &Stage::Serving);
        // What was found once is not looked for again after a restart.
        host.restart();
        assert_eq!(host.step(&mut follower), Some(Request::Serve));
    }

    #[test]
    fn a_candidate_that_was_withdrawn_stays_out_until_the_next_announcement() {
        let (mut host, mut follower) = (Host::new(), Follower::default());
        follower.hear(signed(1, b"a", terms()));
        host.step(&mut follower);
        host.canary = None;
        assert_eq!(host.step(&mut follower), None);
        assert_eq!(stage(&follower), &Stage::Withdrawn);
        host.restart();
        assert_eq!(host.step(&mut follower), None);
        follower.hear(signed(2, b"b", terms()));
        assert_eq!(host.step(&mut follower), Some(TRY));
    }

    #[test]
    fn a_canary_of_somebody_else_is_waited_for() {
        let (mut host, mut follower) = (Host::new(), Follower::default());
        host.canary = Some(("/home/op/mine.onnx".into(), Finding::NotWorse));
        follower.hear(signed(1, b"a", None));
        assert_eq!(host.step(&mut follower), None);
        host.canary = None;
        assert_eq!(host.step(&mut follower), Some(Request::Serve));
        // The same after a restart whose configuration has a canary.
        host.restart();
        host.canary = Some(("/home/op/mine.onnx".into(), Finding::Open));
        assert_eq!(host.step(&mut follower), None);
        assert_eq!(host.step(&mut follower), None);
        host.canary = None;
        assert_eq!(host.step(&mut follower), Some(Request::Serve));
    }

    #[test]
    fn a_candidate_that_was_replaced_in_the_channel_is_withdrawn() {
        let (mut host, mut follower) = (Host::new(), Follower::default());
        follower.hear(signed(1, b"a", terms()));
        assert_eq!(host.step(&mut follower), Some(TRY));
        follower.hear(signed(2, b"b", terms()));
        follower.hear(signed(3, b"c", None));
        assert_eq!(host.step(&mut follower), Some(Request::Withdraw));
        assert_eq!(host.step(&mut follower), Some(Request::Serve));
        assert_eq!(host.step(&mut follower), None);
    }

    #[test]
    fn what_was_refused_is_asked_of_the_next_run_again() {
        let (mut host, mut follower) = (Host::new(), Follower::default());
        follower.hear(signed(1, b"a", None));
        let agent = Agent {
            pid: 1,
            uptime_s: 1.0,
            sha256: None,
            rolled_back: Vec::new(),
            canary: None,
        };
        let request = follower.look(&agent).expect("it is to be served");
        follower.answered(&request, Err("window_ms 50".into()));
        assert_eq!(stage(&follower), &Stage::Refused("window_ms 50".into()));
        host.uptime_s = 1.0;
        assert_eq!(host.step(&mut follower), None);
        host.restart();
        assert_eq!(host.step(&mut follower), Some(Request::Serve));
    }

    #[test]
    fn older_and_forked_announcements_change_nothing() {
        let mut follower = Follower::default();
        follower.hear(signed(3, b"a", None));
        let before = follower.clone();
        let replayed = Turn::Replayed { found: 2, known: 3 };
        assert_eq!(follower.hear(signed(2, b"b", None)), replayed);
        assert_eq!(follower.hear(signed(3, b"b", None)), Turn::Forked);
        assert_eq!(follower, before);
        // Also by a process that was started anew.
        let text = serde_json::to_string(&before).expect("serialises");
        let mut again: Follower = serde_json::from_str(&text).expect("parses");
        assert_eq!(again.hear(signed(2, b"b", None)), replayed);
    }

    /// What happens to a host.
    #[derive(Clone, Debug)]
    enum Event {
        Announce { policy: u8, canary: bool },
        Step,
        Restart,
        Found(Finding),
        Withdraw,
        Rollback,
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let finding = prop_oneof![
            Just(Finding::Open),
            Just(Finding::Worse),
            Just(Finding::NotWorse)
        ];
        let event = prop_oneof![
            (any::<u8>(), any::<bool>())
                .prop_map(|(policy, canary)| Event::Announce { policy, canary }),
            Just(Event::Step),
            Just(Event::Step),
            Just(Event::Restart),
            finding.prop_map(Event::Found),
            Just(Event::Withdraw),
            Just(Event::Rollback),
        ];
        prop::collection::vec(event, 0..60)
    }

    proptest! {
        /// A candidate comes into service only by a finding, however the host and its operator act,
        /// and in the end there is nothing left to ask.
        #[test]
        fn only_what_was_not_found_worse_is_promoted(events in events()) {
            let (mut host, mut follower) = (Host::new(), Follower::default());
            let mut sequence = 0;
            for event in events {
                match event {
                    Event::Announce { policy, canary } => {
                        sequence += 1;
                        let terms = canary.then(terms).flatten();
                        prop_assert_eq!(
                            follower.hear(signed(sequence, &[policy], terms)),
                            Turn::New
                        );
                    }
                    Event::Step => {
                        let found = host.canary.clone();
                        if host.step(&mut follower) == Some(Request::Promote) {
                            let (candidate, finding) = found.expect("a canary is promoted");
                            prop_assert_eq!(finding, Finding::NotWorse);
                            let (announcement, _) = follower.current().expect("announced");
                            prop_assert!(candidate.contains(&announcement.sha256));
                        }
                    }
                    Event::Restart => host.restart(),
                    Event::Found(finding) => {
                        if let Some(canary) = &mut host.canary {
                            canary.1 = finding;
                        }
                    }
                    Event::Withdraw => host.canary = None,
                    Event::Rollback => host.sha256 = Some("rolled back".into()),
                }
            }
            if let Some(canary) = &mut host.canary {
                canary.1 = Finding::NotWorse;
            }
            for _ in 0..5 {
                host.step(&mut follower);
            }
            prop_assert_eq!(host.step(&mut follower), None);
        }
    }
}
