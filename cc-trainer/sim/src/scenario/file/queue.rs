//! The `queue` of a direction: its limits, and which keys each kind of active queue management
//! takes.

use std::{ops::Range, time::Duration};

use serde::Deserialize;
use toml::Spanned;

use super::{
    super::{Aqm, CoDel, Discipline, DualPi2, FqCoDel, MTU, Pie, Queue, Service},
    Fault,
    value::*,
};

/// Defines the table of a queue, with the keys of all kinds of active queue management beside its
/// own.
macro_rules! keys {
    ($($key:ident: $kind:ty,)*) => {
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(super) struct QueueTable {
            packets: Option<QueuePackets>,
            bytes: Option<FullPackets>,
            bdp: Option<Multiple>,
            aqm: Option<Spanned<AqmName>>,
            $($key: Option<Spanned<$kind>>,)*
        }

        impl QueueTable {
            /// The position of the first key of some queue that this one does not have.
            fn stranger(&self, allowed: &[&str]) -> Option<(&'static str, Range<usize>)> {
                $(if let Some(value) = &self.$key && !allowed.contains(&stringify!($key)) {
                    return Some((stringify!($key), value.span()));
                })*
                None
            }
        }
    };
}

keys! {
    drop: DropKind,
    ce_threshold_ms: Millis,
    target_ms: PositiveMillis,
    interval_ms: PositiveMillis,
    update_ms: PositiveMillis,
    step_ms: PositiveMillis,
    ecn: bool,
    quantum: Quantum,
    queues: QueueCount,
    coupling: Coupling,
    classic_percent: Percent,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum DropKind {
    Head,
    #[default]
    Tail,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum AqmName {
    CoDel,
    #[serde(rename = "fq_codel")]
    FqCoDel,
    Pie,
    DualPi2,
}

impl AqmName {
    /// Name in scenario files, and its keys beside the limits.
    fn describe(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Self::CoDel => (
                "codel",
                &["target_ms", "interval_ms", "ecn", "ce_threshold_ms"],
            ),
            Self::FqCoDel => (
                "fq_codel",
                &[
                    "target_ms",
                    "interval_ms",
                    "ecn",
                    "ce_threshold_ms",
                    "quantum",
                    "queues",
                ],
            ),
            Self::Pie => ("pie", &["target_ms", "update_ms", "ecn"]),
            Self::DualPi2 => (
                "dualpi2",
                &[
                    "target_ms",
                    "update_ms",
                    "step_ms",
                    "coupling",
                    "classic_percent",
                ],
            ),
        }
    }
}

/// The queue of a link with this service on a path with this base RTT.
pub(super) fn make_queue(
    table: &Spanned<QueueTable>,
    service: &Service,
    base_rtt: Duration,
) -> Result<Queue, Fault> {
    let keys = table.get_ref();
    let aqm = match &keys.aqm {
        Some(name) => Some(make_aqm(keys, name, service)?),
        None => None,
    };
    if aqm.is_none()
        && let Some((key, span)) = keys.stranger(&["drop", "ce_threshold_ms"])
    {
        let message = format!(
            "`{key}` is a key of a queue with active queue management: add `aqm` (codel, \
             fq_codel, pie or dualpi2), or remove it"
        );
        return Err(Fault { span, message });
    }
    let limits = Queue {
        packets: keys.packets.map(|limit| limit.0),
        bytes: keys.bytes.map(|limit| limit.0),
        discipline: match keys.drop.as_ref().map(Spanned::get_ref) {
            Some(DropKind::Head) => Discipline::DropHead,
            Some(DropKind::Tail) | None => Discipline::DropTail,
        },
        ce_threshold: keys
            .ce_threshold_ms
            .as_ref()
            .map(|threshold| threshold.get_ref().duration()),
        aqm,
    };
    match (limits.packets, limits.bytes, keys.bdp) {
        (None, None, None) => match aqm {
            Some(aqm) => Ok(Queue {
                packets: Some(aqm.default_packets()),
                ..limits
            }),
            None => Err(Fault::at(
                table,
                "`queue` has no limit: add `packets`, `bytes` or `bdp`, or remove it (it is \
                 unlimited then)",
            )),
        },
        (_, _, None) => Ok(limits),
        (None, None, Some(Multiple(multiple))) => match service.mean_bits_per_second() {
            Some(rate) => {
                let bytes = (multiple * rate * base_rtt.as_secs_f64() / 8.0).round() as u64;
                Ok(Queue {
                    bytes: Some(bytes.max(MTU.into())),
                    ..limits
                })
            }
            None => Err(Fault::at(
                table,
                "an unlimited link has no bandwidth-delay product: give `packets` or `bytes` \
                 instead of `bdp`",
            )),
        },
        _ => Err(Fault::at(
            table,
            "`bdp` is the limit in bytes: give it alone, or `packets` and `bytes`",
        )),
    }
}

fn make_aqm(keys: &QueueTable, name: &Spanned<AqmName>, service: &Service) -> Result<Aqm, Fault> {
    let (kind, allowed) = name.get_ref().describe();
    if let Some((key, span)) = keys.stranger(allowed) {
        let message = format!(
            "`{key}` is no key of a `{kind}` queue, which has {}: remove it",
            allowed.join(", ")
        );
        return Err(Fault { span, message });
    }
    if matches!(service, Service::Unlimited) {
        let message = format!(
            "nothing waits for an unlimited link, so `{kind}` has nothing to manage: give the \
             link a rate, or remove `aqm`"
        );
        return Err(Fault::at(name, message));
    }
    let or = |value: &Option<Spanned<PositiveMillis>>, default: Duration| {
        (value.as_ref()).map_or(default, |value| value.get_ref().duration())
    };
    let codel = |default: CoDel| {
        let codel = CoDel {
            target: or(&keys.target_ms, default.target),
            interval: or(&keys.interval_ms, default.interval),
            ecn: keys.ecn.as_ref().map_or(default.ecn, |ecn| *ecn.get_ref()),
        };
        if codel.target < codel.interval {
            return Ok(codel);
        }
        let message = format!(
            "the target of {} ms is not below the interval of {} ms, which is to be a long RTT: \
             make `target_ms` a tenth of `interval_ms` or less, or give both",
            codel.target.as_secs_f64() * 1e3,
            codel.interval.as_secs_f64() * 1e3
        );
        let given = keys.target_ms.as_ref().or(keys.interval_ms.as_ref());
        Err(Fault {
            span: given.map_or(name.span(), Spanned::span),
            message,
        })
    };
    Ok(match name.get_ref() {
        AqmName::CoDel => Aqm::CoDel(codel(CoDel::default())?),
        AqmName::FqCoDel => {
            let default = FqCoDel::default();
            Aqm::FqCoDel(FqCoDel {
                codel: codel(default.codel)?,
                quantum: (keys.quantum.as_ref()).map_or(default.quantum, |value| value.get_ref().0),
                queues: (keys.queues.as_ref()).map_or(default.queues, |value| value.get_ref().0),
            })
        }
        AqmName::Pie => {
            let default = Pie::default();
            Aqm::Pie(Pie {
                target: or(&keys.target_ms, default.target),
                update: or(&keys.update_ms, default.update),
                ecn: keys.ecn.as_ref().map_or(default.ecn, |ecn| *ecn.get_ref()),
            })
        }
        AqmName::DualPi2 => {
            let default = DualPi2::default();
            Aqm::DualPi2(DualPi2 {
                target: or(&keys.target_ms, default.target),
                update: or(&keys.update_ms, default.update),
                step: or(&keys.step_ms, default.step),
                coupling: (keys.coupling.as_ref())
                    .map_or(default.coupling, |value| value.get_ref().0),
                classic_percent: (keys.classic_percent.as_ref())
                    .map_or(default.classic_percent, |value| value.get_ref().0),
            })
        }
    })
}
