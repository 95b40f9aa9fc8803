//! A path with a sink at its end.

use std::net::SocketAddr;

use super::{AfterEnd, Bottleneck, Crowd, Flow, Path, Sink};

/// A [`Path`] through a bottleneck, with a [`Sink`] listening at its receiver.
///
/// The sink keeps connections half open after their senders have finished ([`AfterEnd::Hold`]), so
/// that the senders' TCP_INFO can still be read.
pub struct Network {
    // Fields are dropped in this order: the sink ends before its namespace is removed.
    /// Receives and discards what the flows send.
    pub sink: Sink,
    /// The namespaces of sender, router and receiver.
    pub path: Path,
}

impl Network {
    /// Builds the path and starts the sink.
    ///
    /// # Panics
    ///
    /// Panics if a namespace, device or socket cannot be created.
    pub fn through(bottleneck: Bottleneck) -> Self {
        let path = Path::through(bottleneck);
        Self {
            sink: Sink::listen(&path.receiver, AfterEnd::Hold),
            path,
        }
    }

    /// Returns the sink's IPv4 address and port.
    pub fn address(&self) -> SocketAddr {
        self.sink.at(self.path.receiver4())
    }

    /// Connects the sender to the sink over IPv4, under the named congestion control.
    ///
    /// # Panics
    ///
    /// Panics if the kernel lacks the congestion control or refuses the connection.
    pub fn connect(&self, congestion_control: &str) -> Flow {
        Flow::connect(&self.path.sender, self.address(), congestion_control)
    }

    /// Connects that many flows that all send as much as they can, see [`Crowd::connect`].
    ///
    /// # Panics
    ///
    /// Panics if one of them cannot connect within 60 s.
    pub fn crowd(&self, congestion_control: &str, flows: usize) -> Crowd {
        Crowd::connect(&self.path.sender, self.address(), congestion_control, flows)
    }
}
