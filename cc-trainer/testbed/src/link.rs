//! Emulated links: the path of a scenario between two network namespaces, under the real kernel.
//!
//! A link consists of two TUN devices and of one thread per direction, which carries packets from
//! one device to the other as [`cc_sim::path`] determines. Namespaces and devices belong to the
//! process and disappear with its file descriptors, however it ends.

mod carried;
mod classify;
mod ecn;
mod lateness;
mod namespace;
mod tun;
mod way;
mod worker;

pub use carried::{HostEffects, LinkObservation};
pub use classify::Classifier;
pub use lateness::{Contention, Disturbance, Lateness, Limits};
pub use namespace::Namespace;
pub use way::Way;

use std::{
    io,
    net::Ipv4Addr,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use cc_sim::{path::OneWayPath, scenario::Scenario};

use tun::Tun;
use worker::{Worker, WorkerConfig};

/// An emulated link between two network namespaces.
///
/// The *near* end sends the data and the *far* end receives it. Packets from near to far go
/// [forward](Way::Forward), the others go in [reverse](Way::Reverse). Dropping the link removes its
/// devices.
pub struct Link {
    forward: Worker,
    reverse: Worker,
}

impl Link {
    /// Rate of the fastest link that an evaluation emulates, Mbit/s: that of the set `fast`. Beyond
    /// it, hosts cannot keep packets punctual.
    pub const MAX_MBPS: f64 = 1000.0;

    /// Creates a TUN device in each namespace, configures its address (and the near one's qdisc, if
    /// the scenario has a sender's queue) and starts the two emulating
    /// threads. The scenario's clock stands at 0 until [`start`](Self::start); packets sent before
    /// then wait in the devices.
    ///
    /// Flow `i` of the classifier gets the extra delay of the scenario's flow `i`. The far end has
    /// an [address](Addresses::host) for each of the scenario's [hosts](Scenario::hosts). With
    /// equal seeds, equal sequences of packets meet equal losses and jitter.
    ///
    /// # Errors
    ///
    /// Returns an error when a device or thread cannot be created: this needs CAP_NET_ADMIN,
    /// `/dev/net/tun` and iproute2.
    pub fn new(
        scenario: &Scenario,
        near: &Namespace,
        far: &Namespace,
        addresses: Addresses,
        classifier: Classifier,
        seed: u64,
    ) -> Result<Self, LinkError> {
        let near_device = Arc::new(Tun::new(near, addresses.near)?);
        if let Some(queue) = &scenario.sender {
            near_device.queue_behind(near, queue)?;
        }
        let far_device = Arc::new(Tun::new(far, addresses.far)?);
        for host in 1..=scenario.hosts().into_iter().max().unwrap_or(0) {
            let address = addresses.host(host);
            far_device.add(far, address)?;
            near_device.lead(near, address)?;
        }
        let extra_delay: Vec<Duration> = (0..usize::from(classifier.flows))
            .map(|flow| {
                scenario
                    .flows
                    .get(flow)
                    .map_or(Duration::ZERO, |flow| flow.extra_delay)
            })
            .chain([Duration::ZERO])
            .collect();
        let rates =
            [&scenario.forward, &scenario.reverse].map(|way| way.service.mean_bits_per_second());
        let fastest = rates.into_iter().flatten().reduce(f64::max);
        let worker = |model, from: &Arc<Tun>, to: &Arc<Tun>, way, seed| {
            let (model, lead) = worker::with_lead(model);
            Worker::spawn(WorkerConfig {
                path: OneWayPath::new(&model, &extra_delay, seed),
                lead,
                from: Arc::clone(from),
                to: Arc::clone(to),
                classifier,
                way,
                bits_per_second: fastest,
            })
        };
        Ok(Self {
            forward: worker(
                &scenario.forward,
                &near_device,
                &far_device,
                Way::Forward,
                seed,
            )?,
            // The complement selects another random stream than that of the forward direction.
            reverse: worker(
                &scenario.reverse,
                &far_device,
                &near_device,
                Way::Reverse,
                !seed,
            )?,
        })
    }

    /// Starts the scenario's clock and returns the instant of its time 0. Only the first call has
    /// an effect.
    pub fn start(&self) -> Instant {
        let origin = Instant::now();
        self.forward.start(origin);
        self.reverse.start(origin);
        origin
    }

    /// Returns the counters so far, without the bins. The threads answer between two packets, so
    /// calls about a second apart are harmless and frequent calls cost accuracy.
    pub fn snapshot(&self) -> LinkObservation {
        LinkObservation::of(self.forward.snapshot(), self.reverse.snapshot())
    }

    /// Stops the threads, removes the devices and returns the observation. Packets still on the
    /// path are lost.
    ///
    /// # Errors
    ///
    /// Returns an error when a device failed during the run, for instance because it was removed.
    pub fn finish(self) -> Result<LinkObservation, LinkError> {
        // Both are stopped before either is joined, so that they observe the same period.
        self.forward.stop();
        self.reverse.stop();
        Ok(LinkObservation::of(
            self.forward.finish()?,
            self.reverse.finish()?,
        ))
    }
}

/// IPv4 addresses of the two ends of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Address of the end that sends the data.
    pub near: Ipv4Addr,
    /// Address of the end that receives the data.
    pub far: Ipv4Addr,
}

impl Addresses {
    /// The `n`th pair of addresses. Each pair is a /30 of 100.64.0.0/10, the shared address space
    /// (RFC 6598), which collides with neither private networks nor the Internet.
    pub fn nth(n: u16) -> Self {
        let network = u32::from(Ipv4Addr::new(100, 64, 0, 0)) + 4 * u32::from(n);
        Self {
            near: Ipv4Addr::from(network + 2),
            far: Ipv4Addr::from(network + 1),
        }
    }

    /// Address of host number `host` at the far end ([`Scenario::hosts`]): `far` is that of the
    /// first, 0. Those of [the others](Scenario::host_address) are the same on every link.
    pub fn host(&self, host: usize) -> Ipv4Addr {
        Scenario::host_address(host).unwrap_or(self.far)
    }
}

/// Errors of an emulated link and its namespaces.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// A network namespace could not be created or entered.
    #[error("cannot {action} a network namespace: {error}{}", remedy(error))]
    Namespace {
        /// Operation that failed, in words.
        action: &'static str,
        /// Error of the system call.
        error: io::Error,
    },
    /// The host has no TUN driver.
    #[error(
        "no TUN driver: /dev/net/tun: {0} (load it with `modprobe tun`; a container needs \
         `--device /dev/net/tun`)"
    )]
    Driver(io::Error),
    /// A TUN device could not be created.
    #[error("cannot make a TUN device: {error}{}", remedy(error))]
    Device {
        /// Error of the system call.
        error: io::Error,
    },
    /// A program of iproute2 could not be started.
    #[error("cannot run `{program}`: {error} (install iproute2)")]
    Program {
        /// Name of the program: `ip` or `tc`.
        program: &'static str,
        /// Error of the system call.
        error: io::Error,
    },
    /// A program of iproute2 reported an error.
    #[error("`{program}` refused `{commands}`: {message}")]
    Configuration {
        /// Name of the program: `ip` or `tc`.
        program: &'static str,
        /// Commands that it was given.
        commands: String,
        /// Message that it printed to its standard error.
        message: String,
    },
    /// The sending host's queue could not be set up.
    #[error("{error} (the scenario's `sender` needs the kernel's `tbf`: `modprobe sch_tbf`)")]
    SenderQueue {
        /// The error of `tc`, with the commands that it was given.
        error: Box<LinkError>,
    },
    /// A sysctl of a namespace could not be set.
    #[error("cannot set {} in a new network namespace: {error}", path.display())]
    Setting {
        /// File of the sysctl below /proc/sys.
        path: PathBuf,
        /// Error of the system call.
        error: io::Error,
    },
    /// An emulating thread could not be started.
    #[error("cannot start a thread of the emulated link: {0}")]
    Thread(io::Error),
    /// A device failed during the run.
    #[error("the emulated link broke: {0} (was its TUN device taken down?)")]
    Broken(io::Error),
}

/// The remedy for a refused system call, as the end of a message.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            " (run as root, e.g. with sudo; a container needs CAP_NET_ADMIN and CAP_SYS_ADMIN)"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_usable_hosts_of_a_network_of_their_own() {
        assert_eq!(
            Addresses::nth(0),
            Addresses {
                near: Ipv4Addr::new(100, 64, 0, 2),
                far: Ipv4Addr::new(100, 64, 0, 1)
            }
        );
        assert_eq!(Addresses::nth(64).far, Ipv4Addr::new(100, 64, 1, 1));
        assert_eq!(
            Addresses::nth(u16::MAX).near,
            Ipv4Addr::new(100, 67, 255, 254)
        );
    }

    #[test]
    fn hosts_at_the_far_end_have_addresses_of_their_own() {
        let addresses = Addresses::nth(3);
        assert_eq!(addresses.host(0), addresses.far);
        assert_eq!(addresses.host(1), Ipv4Addr::new(198, 18, 0, 1));
        assert_eq!(addresses.host(300), Ipv4Addr::new(198, 18, 1, 44));
    }
}
