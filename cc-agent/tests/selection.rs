//! Which sockets the agent's binary serves: cgroups, lists of networks and devices, what the host's
//! default leaves out, and who may choose. Real connections between network namespaces, of both
//! families and from both ends.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Command, ExitCode, Stdio},
};

use cc_agent::kernel::{
    clock::now_ns,
    datapath::registered,
    privileges::{Capabilities, keep_only},
};
use cc_ebpf::Counter;
use cc_lab::{
    AfterEnd, Agent, Bottleneck, Cgroup, Flow, Footprint, Namespace, Network, Sink, eventually,
    unique_name,
};
use nix::sys::signal::Signal;
use socket2::{Domain, SockRef, Socket, Type};

fn main() -> ExitCode {
    cc_lab::run(cc_lab::trials![
        several_cgroups_use_it,
        a_cgroup_keeps_what_it_has_towards_networks_that_are_left,
        listed_networks_are_left_whatever_a_socket_has_chosen,
        only_listed_networks_are_served,
        the_default_leaves_loopback_and_link_local_alone,
        the_lists_hold_without_an_agent_and_in_other_namespaces,
        accepted_connections_are_left_as_opened_ones,
        devices_are_left_by_their_names,
        who_may_choose_can_be_restricted,
        a_successor_brings_its_own_lists,
        what_cannot_be_selected_is_refused,
    ])
}

const BINARY: &str = env!("CARGO_BIN_EXE_cc-agent");
/// The default congestion control of a network namespace.
const DEFAULT: &str = "net/ipv4/tcp_congestion_control";

/// A path whose sender's default is reno, and the name of the congestion control to come.
struct Bench {
    network: Network,
    name: String,
}

impl Bench {
    fn new() -> Self {
        let network = Network::through(Bottleneck {
            rate_mbit: 20,
            queue_bytes: 1_000_000,
        });
        network.path.sender.set_sysctl(DEFAULT, "reno");
        Self {
            network,
            name: unique_name(),
        }
    }

    fn sender(&self) -> &Namespace {
        &self.network.path.sender
    }

    /// Starts an agent in the sender's namespace.
    fn agent(&self, arguments: &[&str]) -> Agent {
        let arguments = [&["--policy", "fixed:20"], arguments].concat();
        Agent::start_in(self.sender(), BINARY, &self.name, &arguments)
    }

    /// The receiver by IPv4, by IPv6, and by IPv4 of a socket of both families.
    fn receivers(&self) -> [IpAddr; 3] {
        let path = &self.network.path;
        let four = path.receiver4();
        let mapped = match four {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(_) => unreachable!("it is the IPv4 address"),
        };
        [four, path.receiver6(), mapped.into()]
    }

    /// Connects to the sink without a choice, and returns what the connection has.
    fn finds(&self, host: IpAddr) -> String {
        let address = self.network.sink.at(host);
        settled(Flow::connect_without_choice(self.sender(), address))
    }

    /// Connects to the sink under the agent's congestion control, and returns what the connection
    /// has.
    fn chooses(&self, host: IpAddr) -> String {
        let address = self.network.sink.at(host);
        settled(Flow::connect(self.sender(), address, &self.name))
    }
}

/// Has the flow send until some of it was acknowledged, and returns its congestion control. By then
/// the datapath has seen ACKs, also where a kernel has left `init` out.
fn settled(flow: Flow) -> String {
    let flow = flow.sending();
    flow.advance(20_000);
    flow.congestion_control()
}

/// The datapath's count as it is after this call.
fn count(agent: &Agent, counter: Counter) -> u64 {
    let from = now_ns();
    eventually("there was a new snapshot", || {
        let status = agent.status();
        (status.taken_ns > from).then(|| status.datapath[counter.name()])
    })
}

fn cgroup() -> Option<Cgroup> {
    Cgroup::new()
        .inspect_err(|reason| eprintln!("SKIPPED: sockets of cgroups: {reason}"))
        .ok()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("it is ASCII")
}

fn several_cgroups_use_it() {
    let (Some(first), Some(second), Some(other)) = (cgroup(), cgroup(), cgroup()) else {
        return;
    };
    let bench = Bench::new();
    let [four, ..] = bench.receivers();
    let both = [text(first.directory()), text(second.directory())].join(",");
    let mut agent = bench.agent(&["--cgroup", &both]);
    assert_eq!(first.within(|| bench.finds(four)), bench.name);
    assert_eq!(second.within(|| bench.finds(four)), bench.name);
    assert_eq!(other.within(|| bench.finds(four)), "reno");
    assert_eq!(bench.finds(four), "reno");
    let served = agent.status().served.expect("a new agent says so");
    for cgroup in [&first, &second] {
        assert!(served.contains(text(cgroup.directory())), "{served}");
    }
    let (status, log) = agent.end(Signal::SIGTERM);
    assert_eq!(status.code(), Some(0), "{log}");
    for cgroup in [&first, &second] {
        assert_eq!(cgroup.within(|| bench.finds(four)), "reno");
    }
    // Given one by one.
    let [first, second] = [&first, &second].map(|cgroup| text(cgroup.directory()));
    let agent = bench.agent(&["--cgroup", first, "--cgroup", second]);
    let served = agent.status().served.expect("a new agent says so");
    assert!(
        served.contains(first) && served.contains(second),
        "{served}"
    );
    drop(agent);
    Footprint::of(&bench.name).assert_vanishes();
}

fn a_cgroup_keeps_what_it_has_towards_networks_that_are_left() {
    let Some(cgroup) = cgroup() else { return };
    let bench = Bench::new();
    let [four, six, mapped] = bench.receivers();
    let directory = text(cgroup.directory());
    let agent = bench.agent(&["--cgroup", directory, "--never-to", "10.77.2.0/24"]);
    let finds = |host| cgroup.within(|| bench.finds(host));
    assert_eq!(finds(four), "reno");
    assert_eq!(finds(mapped), "reno");
    assert_eq!(finds(six), bench.name);
    // They were never given the name.
    assert_eq!(count(&agent, Counter::ConnectionsLeft), 0);

    // Nor were those that the cgroup accepts.
    let accept = |host: IpAddr| {
        let listener = cgroup.within(|| listen(bench.sender()));
        let port = listener.local_addr().expect("it is bound").port();
        let far = &bench.network.path.receiver;
        accepted(&listener, far, SocketAddr::new(host, port))
    };
    assert_eq!(accept(OWN4.into()), "reno", "from 10.77.2.2");
    assert_eq!(accept(OWN6.into()), bench.name);
    assert_eq!(count(&agent, Counter::ConnectionsLeft), 0);
}

/// The sender's addresses, of either family.
const OWN4: Ipv4Addr = Ipv4Addr::new(10, 77, 1, 2);
const OWN6: Ipv6Addr = Ipv6Addr::new(0xfd77, 1, 0, 0, 0, 0, 0, 2);

fn listed_networks_are_left_whatever_a_socket_has_chosen() {
    let bench = Bench::new();
    let [four, six, mapped] = bench.receivers();
    let agent = bench.agent(&["--never-to", "10.77.0.0/16,2001:db8::/32"]);
    assert_eq!(bench.chooses(six), bench.name);
    assert_eq!(count(&agent, Counter::ConnectionsLeft), 0);
    assert_eq!(bench.chooses(four), "reno");
    assert_eq!(bench.chooses(mapped), "reno");
    assert_eq!(count(&agent, Counter::ConnectionsLeft), 2);
    // A connection that chooses it later.
    let flow = Flow::connect(bench.sender(), bench.network.sink.at(four), "reno");
    let choice = flow.socket().set_tcp_congestion(bench.name.as_bytes());
    choice.expect("it is registered");
    assert_eq!(settled(flow), "reno");
    assert_eq!(count(&agent, Counter::ConnectionsLeft), 3);
    assert_eq!(count(&agent, Counter::ConnectionsKept), 0);
    let served = agent.status().served.expect("a new agent says so");
    let expected = "sockets that choose it; never to 10.77.0.0/16, 2001:db8::/32; others have reno";
    assert_eq!(served, expected);
}

fn only_listed_networks_are_served() {
    let bench = Bench::new();
    let [four, six, mapped] = bench.receivers();
    let mut agent = bench.agent(&["--default", "--only-to", "fd77::/16"]);
    assert_eq!(bench.finds(six), bench.name);
    assert_eq!(bench.finds(four), "reno");
    assert_eq!(bench.finds(mapped), "reno");
    assert_eq!(bench.chooses(four), "reno");
    agent.end(Signal::SIGTERM);

    // The smallest network that has an address decides.
    let lists = [
        "--only-to",
        "10.77.2.2,fd77::/16",
        "--never-to",
        "10.77.0.0/16,fd77:2::/32",
    ];
    let agent = bench.agent(&[&["--default"], &lists[..]].concat());
    assert_eq!(bench.finds(four), bench.name);
    assert_eq!(bench.finds(mapped), bench.name);
    assert_eq!(bench.finds(six), "reno");
    assert_eq!(count(&agent, Counter::ConnectionsLeft), 1);
}

/// A sink in the sender's own namespace, and hosts by which the sender reaches it: by loopback, and
/// by its own address, which is routed over `lo` too.
fn own_hosts() -> [IpAddr; 4] {
    let loopback = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    [loopback[0], loopback[1], OWN4.into(), OWN6.into()]
}

fn the_default_leaves_loopback_and_link_local_alone() {
    let bench = Bench::new();
    let (sender, router) = (bench.sender(), bench.network.path.router());
    let own = Sink::listen(sender, AfterEnd::Close);
    let neighbour = Sink::listen(router, AfterEnd::Close);
    sender.ip("address add 169.254.7.2/16 dev s0");
    router.ip("address add 169.254.7.1/16 dev r0");
    let link_local = neighbour.at(Ipv4Addr::new(169, 254, 7, 1).into());
    let local = own_hosts().map(|host| own.at(host));
    let local = || local.into_iter().chain([link_local]);
    let finds = |to| settled(Flow::connect_without_choice(sender, to));
    let chooses = |to| settled(Flow::connect(sender, to, &bench.name));

    let mut agent = bench.agent(&["--default"]);
    for host in bench.receivers() {
        assert_eq!(bench.finds(host), bench.name, "{host}");
    }
    for to in local() {
        assert_eq!(finds(to), "reno", "{to}");
        assert_eq!(chooses(to), bench.name, "{to}: its own choice");
    }
    // At loopback both ends are of this namespace: the opened and the accepted one.
    assert_eq!(count(&agent, Counter::ConnectionsKept), 0);
    let served = agent.status().served.expect("a new agent says so");
    assert!(
        served.contains("not over loopback or to link-local"),
        "{served}"
    );
    agent.end(Signal::SIGTERM);
    assert_eq!(sender.sysctl(DEFAULT), "reno");

    let mut agent = bench.agent(&["--default", "--default-local"]);
    for to in local() {
        assert_eq!(finds(to), bench.name, "{to}");
    }
    assert_eq!(count(&agent, Counter::ConnectionsLeft), 0);
    agent.end(Signal::SIGTERM);

    // A list holds for those that have chosen it as well.
    let _agent = bench.agent(&["--default", "--never-to", "127.0.0.0/8"]);
    assert_eq!(chooses(own.at(Ipv4Addr::LOCALHOST.into())), "reno");
    assert_eq!(chooses(own.at(Ipv6Addr::LOCALHOST.into())), bench.name);
}

fn the_lists_hold_without_an_agent_and_in_other_namespaces() {
    let bench = Bench::new();
    let [four, six, _] = bench.receivers();
    let (sender, receiver) = (bench.sender(), &bench.network.path.receiver);
    let own = Sink::listen(receiver, AfterEnd::Close);
    let over_loopback = || {
        let to = own.at(Ipv4Addr::LOCALHOST.into());
        settled(Flow::connect_without_choice(receiver, to))
    };
    let mut agent = bench.agent(&["--default", "--never-to", "10.77.2.2"]);
    // As in a container that was started meanwhile, which has copied the default.
    receiver.set_sysctl(DEFAULT, &bench.name);
    assert_eq!(over_loopback(), "reno");

    agent.end(Signal::SIGKILL);
    assert_eq!(sender.sysctl(DEFAULT), bench.name, "nobody restored it");
    assert_eq!(bench.finds(six), bench.name);
    assert_eq!(bench.finds(four), "reno");
    assert_eq!(over_loopback(), "reno");

    let mut command = Command::new(BINARY);
    command.args(["restore", "--name", &bench.name, "--socket"]);
    sender.hold(command.arg(agent.socket()));
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        (sender.sysctl(DEFAULT), receiver.sysctl(DEFAULT)),
        ("reno".into(), "reno".into())
    );
}

/// A listening socket of both families.
fn listen(namespace: &Namespace) -> TcpListener {
    namespace.within(|| TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).expect("a free port"))
}

/// Connects from a namespace, and returns the congestion control of the accepted end once it has
/// sent.
fn accepted(listener: &TcpListener, from: &Namespace, to: SocketAddr) -> String {
    let connected = from.within(|| TcpStream::connect(to));
    let far = connected.unwrap_or_else(|error| panic!("connecting to {to}: {error}"));
    let (near, _) = listener.accept().expect("a connection");
    // The far end reads what the near end sends.
    let reader = std::thread::spawn(move || io::copy(&mut &far, &mut io::sink()));
    let found = settled(Flow::from(near));
    let _ = reader.join();
    found
}

fn accepted_connections_are_left_as_opened_ones() {
    let bench = Bench::new();
    let receiver = &bench.network.path.receiver;
    let agent = bench.agent(&["--default", "--never-to", "10.77.2.0/24"]);
    let listener = listen(bench.sender());
    let port = listener.local_addr().expect("it is bound").port();
    let accepts = |host: IpAddr| accepted(&listener, receiver, SocketAddr::new(host, port));
    assert_eq!(accepts(OWN4.into()), "reno");
    assert_eq!(accepts(OWN6.into()), bench.name);
    assert_eq!(count(&agent, Counter::ConnectionsLeft), 1);
    // What the listening socket has chosen, its connections inherit.
    let choice = SockRef::from(&listener).set_tcp_congestion(bench.name.as_bytes());
    choice.expect("it is registered");
    assert_eq!(accepts(OWN4.into()), "reno");
    assert_eq!(accepts(OWN6.into()), bench.name);
    assert_eq!(count(&agent, Counter::ConnectionsLeft), 2);
}

fn devices_are_left_by_their_names() {
    let bench = Bench::new();
    let sender = bench.sender();
    let own = Sink::listen(sender, AfterEnd::Close);
    // There is no ppp0 yet.
    let mut agent = bench.agent(&["--never-via", "s0,ppp0"]);
    assert!(
        agent.log().contains("no network device ppp0"),
        "{}",
        agent.log()
    );
    for host in bench.receivers() {
        assert_eq!(bench.chooses(host), "reno", "{host}");
    }
    let over_loopback = |host| settled(Flow::connect(sender, own.at(host), &bench.name));
    for host in own_hosts() {
        assert_eq!(over_loopback(host), bench.name, "{host}");
    }
    agent.end(Signal::SIGTERM);

    let agent = bench.agent(&["--only-via", "s0"]);
    for host in bench.receivers() {
        assert_eq!(bench.chooses(host), bench.name, "{host}");
    }
    for host in own_hosts() {
        assert_eq!(over_loopback(host), "reno", "{host}");
    }
    drop(agent);
    // A device whose name was longer before; the kernel leaves the end of that one in its place.
    let far = bench.network.path.router();
    far.ip("address add 10.79.0.1/24 dev r0");
    sender.ip("address add 10.79.0.2/24 dev s0");
    sender.ip("link set s0 down");
    sender.ip("link set s0 name a_long_name");
    sender.ip("link set a_long_name name ppp1");
    sender.ip("link set ppp1 up");
    let neighbour = Sink::listen(far, AfterEnd::Close);
    let to = neighbour.at(Ipv4Addr::new(10, 79, 0, 1).into());
    let _agent = bench.agent(&["--never-via", "ppp1"]);
    assert_eq!(settled(Flow::connect(sender, to, &bench.name)), "reno");
}

fn who_may_choose_can_be_restricted() {
    let bench = Bench::new();
    let [four, ..] = bench.receivers();
    // In a thread of its own, which keeps no capability.
    let asks_without_privileges = || {
        bench.sender().within(|| {
            keep_only(Capabilities::NONE).expect("giving up is always allowed");
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a descriptor");
            socket.set_tcp_congestion(bench.name.as_bytes())
        })
    };
    let mut agent = bench.agent(&[]);
    asks_without_privileges().expect("anybody may choose it");
    agent.end(Signal::SIGTERM);

    let Some(cgroup) = cgroup() else { return };
    let agent = bench.agent(&["--restricted", "--cgroup", text(cgroup.directory())]);
    let refused = asks_without_privileges().expect_err("it is restricted");
    assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
    assert_eq!(
        bench.chooses(four),
        bench.name,
        "this process has the privilege"
    );
    assert_eq!(cgroup.within(|| bench.finds(four)), bench.name);
    let served = agent.status().served.expect("a new agent says so");
    assert!(
        served.starts_with("sockets that a privileged process"),
        "{served}"
    );
}

fn a_successor_brings_its_own_lists() {
    let bench = Bench::new();
    let [four, six, _] = bench.receivers();
    let patient = [
        "--policy",
        "fixed:20",
        "--heartbeat-ms",
        "30000",
        "--default",
    ];
    let mut first = bench.agent(&patient[2..]);
    assert_eq!(bench.finds(four), bench.name);
    let mut command = Command::new(BINARY);
    bench.sender().hold(&mut command);
    let arguments = [&patient[..], &["--takeover", "--never-to", "10.77.2.0/24"]].concat();
    let second = Agent::spawn_by(command, &bench.name, first.socket(), &arguments);
    let (status, log) = first.wait();
    assert_eq!(status.code(), Some(0), "{log}{}", second.log());
    eventually("the successor answered", || {
        (cc_client::fetch(second.socket()).ok()?.pid == second.pid().as_raw() as u32).then_some(())
    });
    // The default is the name itself by now; what it was before is remembered.
    assert_eq!(bench.finds(four), "reno");
    assert_eq!(bench.finds(six), bench.name);
}

fn what_cannot_be_selected_is_refused() {
    let Some(cgroup) = cgroup() else { return };
    let directory = text(cgroup.directory());
    let again = format!("{directory}/.");
    let cases: [(&[&str], &[&str]); 9] = [
        (
            &["--cgroup", directory, "--cgroup", "/sys/fs/cgroup/nowhere"],
            &["cgroup", "/sys/fs/cgroup/nowhere", "No such file"],
        ),
        (
            &["--cgroup", "/proc"],
            &["/proc", "no directory of a cgroup v2", "mount -t cgroup2"],
        ),
        (
            &["--cgroup", directory, "--cgroup", &again],
            &[&again, "given twice", "leave one"],
        ),
        (
            &["--only-to", "10.0.0.0/8,10.0.0.1/8"],
            &[
                "--only-to",
                "10.0.0.1/8",
                "bits beyond the length",
                "clear them",
            ],
        ),
        (
            &["--never-to", "example.org"],
            &["--never-to", "example.org", "10.0.0.0/8"],
        ),
        (
            &["--never-to", "::ffff:10.0.0.0/8"],
            &[
                "--never-to",
                "::ffff:10.0.0.0/8",
                "write the network as IPv4",
                "10.0.0.0/8",
            ],
        ),
        (
            &["--only-to", "10.0.0.0/8", "--never-to", "10.0.0.0/8"],
            &["--never-to 10.0.0.0/8", "--only-to", "leave it out"],
        ),
        (
            &["--default", "--only-via", "lo"],
            &["--only-via lo", "--default-local"],
        ),
        (&["--never-via", "a/b"], &["--never-via", "a/b", "ip link"]),
    ];
    for (arguments, parts) in cases {
        let name = unique_name();
        let mut command = Command::new(BINARY);
        command.args(["run", "--plain", "--duration", "1", "--policy", "fixed:10"]);
        command
            .args(["--name", &name])
            .args(arguments)
            .stdin(Stdio::null());
        let output = command.output().expect("it starts");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{arguments:?}: {error}");
        for part in parts {
            assert!(
                error.contains(part),
                "{arguments:?} does not say {part}: {error}"
            );
        }
        assert!(!registered(&name), "{arguments:?}");
        Footprint::of(&name).assert_vanishes();
    }
}
