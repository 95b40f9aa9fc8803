//! Links whose queues manage themselves. Half of those that can mark instead of dropping do.

use rand::{RngExt, rngs::Xoshiro256PlusPlus};

use super::{
    super::super::{Aqm, CoDel, DualPi2, Flow, FqCoDel, Pie, Rule, Scenario},
    Plain, Point, Ranges, cubics, flows, logarithmic, milliseconds, shared, three_digits,
};

/// Links of all kinds, with limits from half a BDP to a bloated buffer that the management is to
/// tame.
const MANAGED: Ranges = Ranges::new([0.5, 300.0], [2.0, 300.0], [0.5, 30.0]);
/// Targets of CoDel, ms; its interval is twenty times as long (RFC 8289, section 4.3, has the
/// target at 5 to 10 % of the interval).
const CODEL_TARGETS: [f64; 2] = [2.0, 20.0];
/// Targets of PIE and DualPI2, ms, about the 15 ms of RFC 8033 and RFC 9332.
const PI_TARGETS: [f64; 2] = [5.0, 40.0];

pub(super) fn codel(point: Point, _: &mut Xoshiro256PlusPlus) -> Scenario {
    let (ecn, u) = half(point[3]);
    managed(MANAGED.at(point), Aqm::CoDel(controlled_delay(ecn, u)))
}

/// Fair queueing, in half of the cases with cubic flows beside.
pub(super) fn fq_codel(point: Point, random: &mut Xoshiro256PlusPlus) -> Scenario {
    let (ecn, u) = half(point[3]);
    let aqm = Aqm::FqCoDel(FqCoDel {
        codel: controlled_delay(ecn, u),
        ..FqCoDel::default()
    });
    let mut scenario = managed(MANAGED.at(point), aqm);
    if random.random::<bool>() {
        let count = random.random_range(1..=4);
        scenario.description = format!("beside {}, {}", cubics(count), scenario.description);
        scenario.flows = vec![Flow::default()];
        scenario.flows.extend(flows(count, Some("cubic"), random));
        scenario.scoring = shared(Rule::Share, 0);
    }
    scenario
}

pub(super) fn pie(point: Point, _: &mut Xoshiro256PlusPlus) -> Scenario {
    let (ecn, u) = half(point[3]);
    let aqm = Aqm::Pie(Pie {
        target: milliseconds(logarithmic(PI_TARGETS, u)),
        ecn,
        ..Pie::default()
    });
    managed(MANAGED.at(point), aqm)
}

/// DualPI2, which marks whatever is ECN-capable, and has no key to turn that off.
pub(super) fn dualpi2(point: Point, _: &mut Xoshiro256PlusPlus) -> Scenario {
    let aqm = Aqm::DualPi2(DualPi2 {
        target: milliseconds(logarithmic(PI_TARGETS, point[3])),
        ..DualPi2::default()
    });
    managed(MANAGED.at(point), aqm)
}

/// Which half of [0, 1) a coordinate is in, and its place in that half.
fn half(u: f64) -> (bool, f64) {
    (u >= 0.5, 2.0 * u % 1.0)
}

fn controlled_delay(ecn: bool, u: f64) -> CoDel {
    let target = logarithmic(CODEL_TARGETS, u);
    CoDel {
        target: milliseconds(target),
        interval: milliseconds(20.0 * target),
        ecn,
    }
}

fn managed(plain: Plain, aqm: Aqm) -> Scenario {
    let (name, target) = match &aqm {
        Aqm::CoDel(codel) => ("codel", codel.target),
        Aqm::FqCoDel(fq) => ("fq_codel", fq.codel.target),
        Aqm::Pie(pie) => ("pie", pie.target),
        Aqm::DualPi2(dual) => ("dualpi2", dual.target),
    };
    let marks = if aqm.marks() { " with marks" } else { "" };
    let target = three_digits(target.as_secs_f64() * 1e3);
    let mut scenario = plain.scenario();
    scenario.description = format!("{name}{marks}, target {target} ms: {plain}");
    scenario.forward.queue.aqm = Some(aqm);
    scenario
}
