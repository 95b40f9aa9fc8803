//! Applications whose near end writes by a clock, whatever the network does.

use rand::{RngExt, rngs::Xoshiro256PlusPlus};
use rand_distr::StandardNormal;

use super::{NEVER, exponential};
use crate::path::{Nanos, nanos};
use crate::scenario::App;
use crate::scenario::app::{Keystrokes, OnOff, Script, ShortFlows, Step};

/// What the near end writes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Write {
    /// A message, for which a connection is opened if `opens` is true.
    Message {
        name: usize,
        bytes: u64,
        opens: bool,
    },
    /// A message begins whose size will be known at its end.
    Begin,
    /// More bytes of that message.
    More { bytes: u64 },
    /// From now on as much as the connection takes.
    Stream,
    /// The end of the message that has begun.
    Stop,
}

#[derive(Clone, Debug)]
pub(super) struct Writer {
    /// When it writes next; never before its connection is established.
    next: Nanos,
    plan: Plan,
}

#[derive(Clone, Debug)]
enum Plan {
    OnOff {
        app: OnOff,
        phase: Phase,
    },
    Script {
        app: Script,
        /// The present step, and the number of its writes so far.
        step: usize,
        writes: u32,
    },
    ShortFlows {
        app: ShortFlows,
        left: u32,
    },
    Keystrokes(Keystrokes),
}

/// The phase of an on-off source.
#[derive(Clone, Copy, Debug)]
enum Phase {
    Off,
    /// A period has begun, in which nothing was written so far.
    Begun,
    On {
        /// Begin and end of the period.
        since: Nanos,
        until: Nanos,
        /// Bytes written in it so far.
        written: u64,
    },
}

impl Writer {
    /// Creates the writer with the names of its messages; `None` for an application with a client
    /// and for bulk. It does nothing before its [`start`](Self::start).
    pub(super) fn new(app: &App) -> Option<(Self, Vec<String>)> {
        let (plan, names) = match app {
            App::OnOff(app) => {
                let phase = Phase::Off;
                let app = app.clone();
                (Plan::OnOff { app, phase }, vec!["period".to_owned()])
            }
            App::Script(app) => {
                let mut names = Vec::new();
                for step in &app.steps {
                    if let Step::Write { name, .. } = step
                        && !names.contains(name)
                    {
                        names.push(name.clone());
                    }
                }
                let plan = Plan::Script {
                    app: app.clone(),
                    step: 0,
                    writes: 0,
                };
                (plan, names)
            }
            App::ShortFlows(app) => {
                let plan = Plan::ShortFlows {
                    app: app.clone(),
                    left: app.count.unwrap_or(u32::MAX),
                };
                (plan, vec!["flow".to_owned()])
            }
            App::Keystrokes(app) => {
                let plan = Plan::Keystrokes(app.clone());
                (plan, vec!["keystroke".to_owned()])
            }
            App::Bulk | App::RequestResponse(_) | App::Video(_) => return None,
        };
        Some((Self { next: NEVER, plan }, names))
    }

    /// Begins at `now`, when the connection can be written to.
    pub(super) fn start(&mut self, now: Nanos, random: &mut Xoshiro256PlusPlus) {
        self.next = match &mut self.plan {
            Plan::OnOff { .. } => now,
            Plan::Script { .. } => self.plan.skip_pauses(now),
            Plan::ShortFlows { app, .. } => now + exponential(random, arrival_gap(app)),
            Plan::Keystrokes(app) => now + exponential(random, nanos(app.mean)),
        };
    }

    /// When the next write is due.
    #[inline]
    pub(super) fn due(&self) -> Nanos {
        self.next
    }

    /// What is written at the time that [`due`](Self::due) named.
    pub(super) fn next(&mut self, random: &mut Xoshiro256PlusPlus) -> Write {
        let now = self.next;
        match &mut self.plan {
            Plan::OnOff { app, phase } => {
                let (write, next) = on_off(app, phase, now, random);
                self.next = next;
                write
            }
            Plan::Script { app, step, writes } => {
                let Step::Write {
                    name,
                    bytes,
                    every,
                    times,
                } = &app.steps[*step]
                else {
                    unreachable!("pauses are skipped");
                };
                let named = |other: &&Step| matches!(other, Step::Write { .. });
                let mut names: Vec<&String> = Vec::new();
                for other in app.steps.iter().filter(named) {
                    if let Step::Write { name, .. } = other
                        && !names.contains(&name)
                    {
                        names.push(name);
                    }
                }
                let write = Write::Message {
                    name: names.iter().position(|other| *other == name).unwrap_or(0),
                    bytes: *bytes,
                    opens: false,
                };
                *writes += 1;
                let mut next = now + nanos(*every);
                if *writes == *times {
                    (*step, *writes) = (*step + 1, 0);
                    next = self.plan.skip_pauses(next);
                }
                self.next = next;
                write
            }
            Plan::ShortFlows { app, left } => {
                *left -= 1;
                self.next = match *left {
                    0 => NEVER,
                    _ => now + exponential(random, arrival_gap(app)),
                };
                Write::Message {
                    name: 0,
                    bytes: app
                        .sizes
                        .draw(random.random(), random.sample(StandardNormal)),
                    opens: true,
                }
            }
            Plan::Keystrokes(app) => {
                self.next = now + exponential(random, nanos(app.mean));
                Write::Message {
                    name: 0,
                    bytes: app.bytes,
                    opens: false,
                }
            }
        }
    }
}

impl Plan {
    /// Moves a script that reaches its step at `at` to the next write, and returns its time.
    fn skip_pauses(&mut self, mut at: Nanos) -> Nanos {
        let Self::Script { app, step, .. } = self else {
            return at;
        };
        loop {
            if *step == app.steps.len() {
                if !app.repeat {
                    return NEVER;
                }
                *step = 0;
            }
            match &app.steps[*step] {
                Step::Pause(pause) => {
                    at += nanos(*pause);
                    *step += 1;
                }
                Step::Write { .. } => return at,
            }
        }
    }
}

/// What an on-off source writes at `now`, and when it writes next.
fn on_off(
    app: &OnOff,
    phase: &mut Phase,
    now: Nanos,
    random: &mut Xoshiro256PlusPlus,
) -> (Write, Nanos) {
    let mut length = |mean| match app.random {
        true => exponential(random, nanos(mean)).max(1),
        false => nanos(mean),
    };
    match *phase {
        Phase::Off => {
            *phase = Phase::Begun;
            (Write::Begin, now)
        }
        Phase::Begun => {
            let until = now + length(app.on);
            let mut written = 0;
            let (write, next) = match app.bits_per_second {
                None => (Write::Stream, until),
                Some(rate) => {
                    written = due_bytes(rate, nanos(OnOff::STEP).min(until - now));
                    let next = (now + nanos(OnOff::STEP)).min(until);
                    (Write::More { bytes: written }, next)
                }
            };
            *phase = Phase::On {
                since: now,
                until,
                written,
            };
            (write, next)
        }
        Phase::On { until, .. } if now >= until => {
            *phase = Phase::Off;
            (Write::Stop, now + length(app.off))
        }
        Phase::On {
            since,
            until,
            written,
        } => {
            let rate = app.bits_per_second.unwrap_or(0.0);
            let next = (now + nanos(OnOff::STEP)).min(until);
            let all = due_bytes(rate, next - since).max(written + 1);
            *phase = Phase::On {
                since,
                until,
                written: all,
            };
            let bytes = all - written;
            (Write::More { bytes }, next)
        }
    }
}

/// Bytes of `rate` bit/s in `time` ns, at least one.
fn due_bytes(rate: f64, time: Nanos) -> u64 {
    ((rate * time as f64 / 8e9).round() as u64).max(1)
}

/// Mean time between two arrivals, ns.
fn arrival_gap(app: &ShortFlows) -> Nanos {
    (1e9 / app.per_second) as Nanos
}
