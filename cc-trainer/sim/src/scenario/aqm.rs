//! Active queue management: which packets a queue marks or drops before it is full, with the
//! parameters and defaults of Linux's queueing disciplines.

use std::time::Duration;

use super::MTU;

/// Active queue management of a queue. `queue.packets` and `queue.bytes` still limit the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aqm {
    /// Controlled delay (RFC 8289), Linux's `codel`.
    CoDel(CoDel),
    /// Fair queueing of connections, each under controlled delay (RFC 8290), Linux's `fq_codel`.
    FqCoDel(FqCoDel),
    /// Proportional integral controller, enhanced (RFC 8033), Linux's `pie`.
    Pie(Pie),
    /// Two coupled queues, one for each kind of congestion control (RFC 9332), Linux's `dualpi2`.
    DualPi2(DualPi2),
}

/// Parameters of CoDel (RFC 8289, section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoDel {
    /// Time in the queue that is tolerated for longer than an interval.
    pub target: Duration,
    /// Time that the delay may exceed the target, of the order of the longest usual RTT.
    pub interval: Duration,
    /// Whether ECN-capable packets are marked instead of dropped.
    pub ecn: bool,
}

/// Parameters of fq_codel (RFC 8290, section 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FqCoDel {
    /// CoDel, which each of the queues runs for itself.
    pub codel: CoDel,
    /// Bytes of IP that a queue may send in its turn.
    pub quantum: u32,
    /// Number of queues, to which connections are assigned by a hash.
    pub queues: u32,
}

/// Parameters of PIE. The gains are Linux's and the RFC's, 0.125 and 1.25 per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pie {
    /// Time in the queue that the controller aims at.
    pub target: Duration,
    /// Time between two updates of the drop probability.
    pub update: Duration,
    /// Whether ECN-capable packets are marked instead of dropped while the probability is at most
    /// 10 %.
    pub ecn: bool,
}

/// Parameters of DualPI2. The gains are Linux's and the RFC's, 0.16 and 3.2 per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DualPi2 {
    /// Time in the queue that the controller aims at.
    pub target: Duration,
    /// Time between two updates of the drop probability.
    pub update: Duration,
    /// Time in the queue from which packets of the L4S queue are marked.
    pub step: Duration,
    /// The coupling factor k: L4S packets are marked with k times the probability whose square is
    /// that of the classic queue.
    pub coupling: u32,
    /// Least share of the link that the classic queue gets while both wait, percent.
    pub classic_percent: u32,
}

impl Aqm {
    /// Most packets in the queue if a scenario sets no limit: the default of the qdisc in Linux.
    pub fn default_packets(&self) -> u32 {
        match self {
            Self::CoDel(_) | Self::Pie(_) => 1_000,
            Self::FqCoDel(_) => 10_240,
            Self::DualPi2(_) => 10_000,
        }
    }

    /// Whether it marks ECN-capable packets.
    pub fn marks(&self) -> bool {
        match self {
            Self::CoDel(CoDel { ecn, .. }) | Self::Pie(Pie { ecn, .. }) => *ecn,
            Self::FqCoDel(fq) => fq.codel.ecn,
            Self::DualPi2(_) => true,
        }
    }
}

impl Default for CoDel {
    /// As Linux has them: `codel_params_init` (include/net/codel_impl.h, Linux 6.18).
    fn default() -> Self {
        Self {
            target: Duration::from_millis(5),
            interval: Duration::from_millis(100),
            ecn: false,
        }
    }
}

impl Default for FqCoDel {
    /// `fq_codel_init` (net/sched/sch_fq_codel.c, Linux 6.18). The quantum is a full packet.
    fn default() -> Self {
        Self {
            codel: CoDel {
                ecn: true,
                ..CoDel::default()
            },
            quantum: MTU,
            queues: 1_024,
        }
    }
}

impl Default for Pie {
    /// As Linux has them: `pie_params_init` (include/net/pie.h, Linux 6.18).
    fn default() -> Self {
        Self {
            target: Duration::from_millis(15),
            update: Duration::from_millis(15),
            ecn: false,
        }
    }
}

impl Default for DualPi2 {
    /// As Linux has them: `dualpi2_reset_default` (net/sched/sch_dualpi2.c, Linux 6.18).
    fn default() -> Self {
        Self {
            target: Duration::from_millis(15),
            update: Duration::from_millis(16),
            step: Duration::from_millis(1),
            coupling: 2,
            classic_percent: 10,
        }
    }
}
