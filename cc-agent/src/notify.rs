//! Telling the service manager how the agent is: the protocol of sd_notify(3), which systemd speaks
//! over the datagram socket that it names in `NOTIFY_SOCKET`.

use std::{
    env, io,
    os::{
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
};

/// The way to the service manager; silent where nobody has asked to be told.
pub(crate) struct Notifier(Option<UnixDatagram>);

impl Notifier {
    /// The way that the environment names.
    pub(crate) fn from_environment() -> Self {
        let connected = env::var_os("NOTIFY_SOCKET").map(|name| connect(name.as_bytes()));
        Self(match connected {
            Some(Ok(socket)) => Some(socket),
            Some(Err(error)) => {
                tracing::warn!("the service manager cannot be told of the start: {error}");
                None
            }
            None => None,
        })
    }

    /// Says that the agent serves.
    pub(crate) fn ready(&self) {
        self.send("READY=1");
    }

    /// Says that the agent serves in the place of the process that the manager has started: it is
    /// the main process of the service from now on.
    pub(crate) fn succeeded(&self) {
        self.send(&format!("MAINPID={}\nREADY=1", std::process::id()));
    }

    /// Says that the event loop goes on and flows are decided about, for `WatchdogSec=`.
    pub(crate) fn alive(&self) {
        self.send("WATCHDOG=1");
    }

    /// Says how the agent is, in a line that `systemctl status` shows.
    pub(crate) fn status(&self, line: &str) {
        // A line break would begin another message.
        self.send(&format!("STATUS={}", line.replace('\n', " ")));
    }

    /// Says that the agent is ending.
    pub(crate) fn stopping(&self) {
        self.send("STOPPING=1");
    }

    fn send(&self, state: &str) {
        if let Some(socket) = &self.0 {
            // A manager that is gone or busy is no reason to wait or to end.
            let _ = socket.send(state.as_bytes());
        }
    }
}

/// Connects to a path, or to the abstract name that follows an `@`.
fn connect(name: &[u8]) -> io::Result<UnixDatagram> {
    let address = match name.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name))?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.connect_addr(&address)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manager_hears_of_each_state() {
        let name = format!("cc-agent-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a short name");
        let manager = UnixDatagram::bind_addr(&address).expect("the name is free");
        let socket = connect(format!("@{name}").as_bytes()).expect("it listens");
        let notifier = Notifier(Some(socket));
        notifier.ready();
        notifier.succeeded();
        notifier.alive();
        notifier.status("2 flows\nREADY=0");
        notifier.stopping();
        let status = "STATUS=2 flows READY=0";
        let main = format!("MAINPID={}\nREADY=1", std::process::id());
        for expected in ["READY=1", main.as_str(), "WATCHDOG=1", status, "STOPPING=1"] {
            let mut heard = [0; 64];
            let length = manager.recv(&mut heard).expect("it was sent");
            assert_eq!(&heard[..length], expected.as_bytes());
        }
    }

    #[test]
    fn without_a_manager_nothing_is_said() {
        Notifier(None).ready();
        assert!(connect(b"/nonexistent/notify").is_err());
    }
}
