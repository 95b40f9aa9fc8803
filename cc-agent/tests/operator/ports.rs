//! Which sockets of TCP and UDP the agent's processes have, and who can reach them.

use std::{
    collections::HashSet,
    fs,
    io::ErrorKind,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use cc_channel::SigningKey;
use cc_lab::{Agent, Namespace, Network, eventually, unique_name};
use tempfile::TempDir;

use crate::{BINARY, SHARED};

/// Where the metrics are by default of the agent, the observer, `follow`, `ship` and `pods`.
const PORTS: [u16; 5] = [9465, 9467, 9468, 9469, 9470];
/// The addresses of the sender.
const ADDRESSES: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 77, 1, 2)),
    IpAddr::V6(Ipv6Addr::new(0xfd77, 1, 0, 0, 0, 0, 0, 2)),
];
/// The state of a listening socket, `TCP_LISTEN` (include/net/tcp_states.h).
const LISTEN: u8 = 0x0a;

pub(crate) fn what_listens_is_on_loopback_only() {
    let network = Network::through(SHARED);
    let (sender, receiver) = (&network.path.sender, &network.path.receiver);
    let name = unique_name();
    let agent = Agent::start_in(sender, BINARY, &name, &["--default"]);
    let flow = network.connect(&name).sending();
    flow.advance(100_000);
    assert_eq!(open_to_peers(sender), [], "the agent has no port");

    let socket = agent.socket().display().to_string();
    let exporter = Process::start(sender, &["metrics", "--socket", &socket]);
    let observer = Process::start(sender, &["observe", "--metrics"]);
    // A channel, recordings and an API server that have nothing to tell.
    let place = TempDir::new().expect("a directory for the test");
    let place = place.path().to_str().expect("it is ASCII");
    let key = SigningKey::create(&Path::new(place).join("key.pem")).expect("writes");
    let key = key.public().to_string();
    let follow = [
        "follow",
        "--channel",
        place,
        "--policies",
        place,
        "--key",
        &key,
    ];
    let follow = [&follow[..], &["--socket", &socket, "--metrics"]].concat();
    let ship = ["ship", place, "--to", place, "--metrics"];
    let pods = ["pods", "--node", "n", "--server", "http://127.0.0.1:1"];
    let pods = [&pods[..], &["--socket", &socket, "--metrics"]].concat();
    let beside = [&follow[..], &ship, &pods].map(|it| Process::start(sender, it));
    for port in PORTS {
        eventually("it listens", || {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            sender.within(|| TcpStream::connect(address)).ok()
        });
    }
    let sockets = open_to_peers(sender);
    let mut ports: Vec<u16> = sockets.iter().map(|socket| socket.local.port()).collect();
    ports.sort_unstable();
    assert_eq!(ports, PORTS, "{sockets:?}");
    for socket in &sockets {
        assert!(socket.local.ip().is_loopback(), "{socket:?}");
    }
    // What these are owned by: the agent, and the process of its policy, have none.
    let all: HashSet<u64> = sockets_of(sender).iter().map(|found| found.inode).collect();
    let agents = descendants(agent.pid().as_raw() as u32);
    assert!(agents.len() > 1, "there is a process for the policy");
    for pid in agents {
        let of_network = inodes(pid).intersection(&all).count();
        assert_eq!(of_network, 0, "process {pid} has a socket of TCP or UDP");
    }
    for process in [&exporter, &observer].into_iter().chain(&beside) {
        let listening = sockets.iter().map(|found| found.inode);
        let owned = inodes(process.0.id());
        let owned = listening.filter(|inode| owned.contains(inode)).count();
        assert_eq!(owned, 1, "process {}", process.0.id());
    }
    // The path from the peer is open, and nobody answers at its end.
    for address in ADDRESSES {
        for port in PORTS {
            let address = SocketAddr::from((address, port));
            let limit = Duration::from_secs(10);
            let refused = receiver.within(|| TcpStream::connect_timeout(&address, limit));
            let error = refused.expect_err("it is refused");
            assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{address}");
        }
    }
}

/// A command of the agent's binary, killed when it is dropped.
struct Process(Child);

impl Process {
    fn start(namespace: &Namespace, arguments: &[&str]) -> Self {
        let mut command = Command::new(BINARY);
        namespace.hold(&mut command);
        command.args(arguments).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().expect("our own binary"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A socket of TCP or UDP.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    local: SocketAddr,
    is_udp: bool,
    state: u8,
    inode: u64,
}

/// The sockets of a namespace that take what others send: those of TCP that listen, and all of UDP.
fn open_to_peers(namespace: &Namespace) -> Vec<Found> {
    let mut sockets = sockets_of(namespace);
    sockets.retain(|socket| socket.is_udp || socket.state == LISTEN);
    sockets
}

/// The sockets of TCP and UDP in a namespace (proc_pid_net(5)).
fn sockets_of(namespace: &Namespace) -> Vec<Found> {
    let tables = ["tcp", "tcp6", "udp", "udp6"].map(|table| {
        let path = format!("/proc/thread-self/net/{table}");
        let text = namespace.within(|| fs::read_to_string(&path));
        (
            table,
            text.unwrap_or_else(|error| panic!("{path}: {error}")),
        )
    });
    let mut sockets = Vec::new();
    for (table, text) in &tables {
        for line in text.lines().skip(1) {
            let socket = parse(line, table.starts_with("udp"));
            sockets.push(socket.unwrap_or_else(|| panic!("{table}: {line}")));
        }
    }
    sockets
}

fn parse(line: &str, is_udp: bool) -> Option<Found> {
    let columns: Vec<&str> = line.split_whitespace().collect();
    let (address, port) = columns.get(1)?.split_once(':')?;
    // Words in the order of the host, whose bytes are those of the address.
    let word = |at: usize| {
        let word = u32::from_str_radix(address.get(8 * at..8 * at + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    let ip: IpAddr = match address.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        _ => {
            let bytes = [word(0)?, word(1)?, word(2)?, word(3)?].concat();
            Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into()
        }
    };
    Some(Found {
        local: SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?),
        is_udp,
        state: u8::from_str_radix(columns.get(3)?, 16).ok()?,
        inode: columns.get(9)?.parse().ok()?,
    })
}

/// A process and all that came from it.
fn descendants(pid: u32) -> Vec<u32> {
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(pid) = found.get(next) {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter();
        let lists: String = tasks
            .flatten()
            .flatten()
            .filter_map(|task| fs::read_to_string(task.path().join("children")).ok())
            .collect();
        found.extend(
            lists
                .split_whitespace()
                .filter_map(|pid| pid.parse::<u32>().ok()),
        );
        next += 1;
    }
    found
}

/// The inodes of a process's sockets.
fn inodes(pid: u32) -> HashSet<u64> {
    let path = format!("/proc/{pid}/fd");
    let descriptors = fs::read_dir(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    descriptors
        .flatten()
        .filter_map(|descriptor| fs::read_link(descriptor.path()).ok())
        .filter_map(|link| {
            let link = link.to_string_lossy().into_owned();
            let inode = link.strip_prefix("socket:[")?.strip_suffix(']')?;
            inode.parse().ok()
        })
        .collect()
}
