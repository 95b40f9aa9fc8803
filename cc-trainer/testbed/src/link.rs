//! A scenario's path under the real kernel: two TUN devices, and a thread per direction that carries the packets
//! from one to the other as [`cc_sim::path`] says.
//!
//! Everything belongs to the process: the namespaces and devices go with its descriptors, whatever way it ends.

mod carried;
mod classify;
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
/// Dropping it takes the devices away.
pub struct Link {
    forward: Worker,
    reverse: Worker,
}

impl Link {
    /// Makes a TUN device in each namespace, gives them their addresses and starts the two emulating threads. The
    /// scenario's clock stands still at 0 until [`start`](Self::start); packets sent before wait in the device.
    ///
    /// Flow `i` of the classifier gets the extra delay of the scenario's flow `i`. Equal seeds give equal losses and
    /// jitter to equal packets.
    ///
    /// Needs CAP_NET_ADMIN, `/dev/net/tun` and iproute2.
    pub fn new(
        scenario: &Scenario,
        near: &Namespace,
        far: &Namespace,
        addresses: Addresses,
        classifier: Classifier,
        seed: u64,
    ) -> Result<Self, LinkError> {
        let near_device = Arc::new(Tun::new(near, addresses.near)?);
        let far_device = Arc::new(Tun::new(far, addresses.far)?);
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
            // Another stream of the generator than the forward direction's.
            reverse: worker(
                &scenario.reverse,
                &far_device,
                &near_device,
                Way::Reverse,
                !seed,
            )?,
        })
    }

    /// Starts the scenario's clock; the moment returned is its time 0. Only the first call counts.
    pub fn start(&self) -> Instant {
        let origin = Instant::now();
        self.forward.start(origin);
        self.reverse.start(origin);
        origin
    }

    /// The counters so far, without the bins. The threads answer between two packets; a second apart is fine,
    /// much more often costs accuracy.
    pub fn snapshot(&self) -> LinkObservation {
        LinkObservation::of(self.forward.snapshot(), self.reverse.snapshot())
    }

    /// Stops the threads, takes the devices away and hands over what was observed. Packets on the way are lost.
    ///
    /// Fails when a device broke during the run (somebody took it away).
    pub fn finish(self) -> Result<LinkObservation, LinkError> {
        // Both stop before either is waited for, so that they observed the same time.
        self.forward.stop();
        self.reverse.stop();
        Ok(LinkObservation::of(
            self.forward.finish()?,
            self.reverse.finish()?,
        ))
    }
}

/// The two ends' addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Of the end that sends the data.
    pub near: Ipv4Addr,
    /// Of the end that receives it.
    pub far: Ipv4Addr,
}

impl Addresses {
    /// The `n`th pair: a /30 each in 100.64.0.0/10, which is for links like this one (RFC 6598) and so collides with
    /// neither private networks nor the Internet.
    pub fn nth(n: u16) -> Self {
        let network = u32::from(Ipv4Addr::new(100, 64, 0, 0)) + 4 * u32::from(n);
        Self {
            near: Ipv4Addr::from(network + 2),
            far: Ipv4Addr::from(network + 1),
        }
    }
}

/// Why there is no link.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// A network namespace could not be made or entered.
    #[error("cannot {action} a network namespace: {error}{}", remedy(error))]
    Namespace {
        /// What was tried.
        action: &'static str,
        /// What the kernel said.
        error: io::Error,
    },
    /// The TUN driver is not there.
    #[error(
        "no TUN driver: /dev/net/tun: {0} (load it with `modprobe tun`; a container needs `--device /dev/net/tun`)"
    )]
    Driver(io::Error),
    /// A TUN device could not be made.
    #[error("cannot make a TUN device: {error}{}", remedy(error))]
    Device {
        /// What the kernel said.
        error: io::Error,
    },
    /// `ip` could not be run.
    #[error("cannot run `ip`: {0} (install iproute2)")]
    Program(io::Error),
    /// `ip` failed.
    #[error("`ip` refused `{commands}`: {message}")]
    Configuration {
        /// What it was given.
        commands: String,
        /// What it said.
        message: String,
    },
    /// A setting of a namespace could not be made.
    #[error("cannot set {} in a new network namespace: {error}", path.display())]
    Setting {
        /// Its file.
        path: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
    /// A thread could not be started.
    #[error("cannot start a thread of the emulated link: {0}")]
    Thread(io::Error),
    /// A device broke during the run.
    #[error("the emulated link broke: {0} (was its TUN device taken down?)")]
    Broken(io::Error),
}

/// What helps against a refusal.
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
}
