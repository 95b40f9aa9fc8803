//! Which sockets the agent's binary serves: cgroups, lists of networks and devices, what the host's
//! default leaves out, and who may choose. Real connections between network namespaces, of both
//! families and from both ends.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, ExitCode, Stdio},
};

use cc_agent::kernel::{
    clock::now_ns,
    datapath::registered,
    privileges::{Capabilities, keep_only},
};
use cc_ebpf::Counter;
use cc_lab::{
    AfterEnd, Agent, ApiServer, Bottleneck, Cgroup, Flow, Footprint, Namespace, Network, Sink,
    eventually, unique_name,
};
use nix::sys::signal::Signal;
use socket2::{Domain, SockRef, Socket, Type};

fn main() -> ExitCode {
    cc_lab::run(cc_lab::trials![
        several_cgroups_use_it,
        routes_select_it_for_connections_over_them,
        commands_name_cgroups_while_it_runs,
        a_successor_keeps_the_cgroups_that_commands_have_named,
        pods_that_an_annotation_selects_are_paced_behind_veth,
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

/// Runs a command of `cc-agent`, and returns whether it succeeded and what it said.
/// Routes to the receiver that name this congestion control, in words of `ip route`.
fn route_by(bench: &Bench, congestion_control: &str) {
    let sender = bench.sender();
    sender.ip(&format!(
        "route replace 10.77.2.2 via 10.77.1.1 congctl {congestion_control}"
    ));
    sender.ip(&format!(
        "-6 route replace fd77:2::2 via fd77:1::1 congctl {congestion_control}"
    ));
}

fn routes_select_it_for_connections_over_them() {
    let bench = Bench::new();
    let (sender, receiver) = (bench.sender(), &bench.network.path.receiver);
    let neighbour = Sink::listen(bench.network.path.router(), AfterEnd::Close);
    let elsewhere = neighbour.at(Ipv4Addr::new(10, 77, 1, 1).into());
    let over_another = || settled(Flow::connect_without_choice(sender, elsewhere));
    let listener = listen(sender);
    let port = listener.local_addr().expect("it is bound").port();
    let accepts = |host: IpAddr| accepted(&listener, receiver, SocketAddr::new(host, port));
    let mut agent = bench.agent(&[]);
    let [four, ..] = bench.receivers();
    let earlier = Flow::connect_without_choice(sender, bench.network.sink.at(four));
    assert_eq!(bench.finds(four), "reno", "no route names it yet");
    route_by(&bench, &bench.name);
    for host in bench.receivers() {
        assert_eq!(bench.finds(host), bench.name, "{host}");
        // The route is looked at after the socket's own choice.
        let address = bench.network.sink.at(host);
        let choice = Flow::connect(sender, address, "reno");
        assert_eq!(settled(choice), bench.name, "{host}");
    }
    for host in [IpAddr::from(OWN4), OWN6.into()] {
        assert_eq!(accepts(host), bench.name, "{host}");
    }
    assert_eq!(over_another(), "reno");
    assert_eq!(settled(earlier), "reno", "it was made before");
    let served = Flow::connect_without_choice(sender, bench.network.sink.at(four)).sending();
    eventually("it is decided about", || {
        (agent.status().agent.decisions > 0).then_some(())
    });
    drop(served);
    agent.end(Signal::SIGTERM);

    // Without an agent the name is none, and with the next one it is again what the route names.
    assert_eq!(bench.finds(four), "reno");
    let mut agent = bench.agent(&["--restricted"]);
    assert_eq!(bench.finds(four), bench.name);
    agent.end(Signal::SIGTERM);
    // The lists come first, unless the route locks the name.
    let agent = bench.agent(&["--never-to", "10.77.2.0/24"]);
    assert_eq!(bench.finds(four), "reno");
    assert_eq!(count(&agent, Counter::ConnectionsLeft), 1);
    route_by(&bench, &format!("lock {}", bench.name));
    assert_eq!(bench.finds(four), bench.name);
    // It is tried at the start and at the first ACK.
    assert!(count(&agent, Counter::ConnectionsKept) > 0);
}

fn command(arguments: &[&str], socket: &Path) -> (bool, String) {
    let mut command = Command::new(BINARY);
    command.args(arguments).arg("--socket").arg(socket);
    let output = command.stdin(Stdio::null()).output().expect("it starts");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    (output.status.success(), said)
}

/// Runs a command of `cc-agent` that must succeed, and returns what it said.
fn done(arguments: &[&str], socket: &Path) -> String {
    let (success, said) = command(arguments, socket);
    assert!(success, "{arguments:?}: {said}");
    said
}

fn commands_name_cgroups_while_it_runs() {
    let (Some(first), Some(second), Some(third)) = (cgroup(), cgroup(), cgroup()) else {
        return;
    };
    let bench = Bench::new();
    let [four, ..] = bench.receivers();
    let places = [&first, &second, &third].map(|cgroup| text(cgroup.directory()).to_owned());
    let [one, two, three] = &places;
    let mut agent = bench.agent(&["--cgroups-by-command", "--cgroup", three]);
    let status = agent.status();
    assert_eq!(status.cgroups.as_deref(), Some(&[][..]));
    let served = status.served.expect("a new agent says so");
    assert!(
        served.contains("those of cgroups that commands name"),
        "{served}"
    );
    let finds = |cgroup: &Cgroup| cgroup.within(|| bench.finds(four));
    assert_eq!(finds(&first), "reno");

    let said = done(&["cgroup", "add", one, two], agent.socket());
    assert_eq!(said.matches("are served from now on").count(), 2, "{said}");
    assert_eq!(finds(&first), bench.name);
    assert_eq!(finds(&second), bench.name);
    // Also where a container has a cgroup of its own, and for what is named twice.
    assert_eq!(finds(&first.below("container")), bench.name);
    let said = done(
        &["cgroup", "add", &format!("{one}/."), three],
        agent.socket(),
    );
    assert!(
        said.contains(&format!("{one} are served already")),
        "{said}"
    );
    let listed = done(&["cgroup", "list"], agent.socket());
    assert_eq!(listed.lines().collect::<Vec<_>>(), places);

    // One that --cgroup has named is served with and without a command.
    for arguments in [["cgroup", "remove", one], ["cgroup", "remove", three]] {
        let said = done(&arguments, agent.socket());
        assert!(said.contains("was removed from the cgroups"), "{said}");
    }
    assert_eq!(finds(&first), "reno");
    assert_eq!(finds(&second), bench.name);
    assert_eq!(finds(&third), bench.name);
    let said = done(&["cgroup", "remove", one], agent.socket());
    assert!(said.contains("no command has named"), "{said}");

    for (arguments, part) in [
        (
            ["cgroup", "add", "/proc"],
            "/proc: it is no directory of a cgroup v2",
        ),
        (["cgroup", "add", "/sys/fs/cgroup/nowhere"], "No such file"),
    ] {
        let (success, said) = command(&arguments, agent.socket());
        assert!(!success && said.contains(part), "{said}");
    }
    // What is removed is forgotten.
    drop(second);
    eventually("the agent forgot it", || {
        agent
            .status()
            .cgroups
            .is_some_and(|it| it.is_empty())
            .then_some(())
    });
    // None of it is news: there may be many.
    assert_eq!(agent.status().news, None);
    let (status, log) = agent.end(Signal::SIGTERM);
    assert_eq!(status.code(), Some(0), "{log}");
    assert_eq!(finds(&third), "reno");
    Footprint::of(&bench.name).assert_vanishes();

    let agent = bench.agent(&["--cgroup", three]);
    let (success, said) = command(&["cgroup", "add", one], agent.socket());
    assert!(
        !success && said.contains("start it with --cgroups-by-command"),
        "{said}"
    );
    let (success, said) = command(&["cgroup", "list"], agent.socket());
    assert!(!success && said.contains("--cgroups-by-command"), "{said}");
}

fn a_successor_keeps_the_cgroups_that_commands_have_named() {
    if !cc_lab::links_register() {
        return eprintln!("SKIPPED: a successor's cgroups: a takeover needs a link");
    }
    let (Some(kept), Some(removed)) = (cgroup(), cgroup()) else {
        return;
    };
    let bench = Bench::new();
    let [four, ..] = bench.receivers();
    let arguments = [
        "--policy",
        "fixed:20",
        "--heartbeat-ms",
        "30000",
        "--takeover",
    ];
    let mut first = bench.agent(&[&arguments[2..4], &["--cgroups-by-command"]].concat());
    let directories = [text(kept.directory()), text(removed.directory())];
    done(
        &[&["cgroup", "add"], &directories[..]].concat(),
        first.socket(),
    );
    let successor = |arguments: &[&str], former: &mut Agent| {
        let mut command = Command::new(BINARY);
        bench.sender().hold(&mut command);
        let next = Agent::spawn_by(command, &bench.name, former.socket(), arguments);
        let (status, log) = former.wait();
        assert_eq!(status.code(), Some(0), "{log}{}", next.log());
        eventually("the successor answered", || {
            let status = cc_client::fetch(next.socket()).ok()?;
            (status.pid == next.pid().as_raw() as u32).then_some(())
        });
        next
    };
    let with = [&arguments[..], &["--cgroups-by-command"]].concat();
    let mut second = successor(&with, &mut first);
    let expected = Some(
        [&kept, &removed]
            .map(|it| it.directory().to_owned())
            .to_vec(),
    );
    assert_eq!(second.status().cgroups, expected);
    assert_eq!(kept.within(|| bench.finds(four)), bench.name);
    done(&["cgroup", "remove", directories[1]], second.socket());
    assert_eq!(removed.within(|| bench.finds(four)), "reno");
    // One that takes no commands serves none of them.
    let third = successor(&arguments, &mut second);
    assert_eq!(third.status().cgroups, None);
    assert_eq!(kept.within(|| bench.finds(four)), "reno");
}

/// `cc-agent pods`, ended when it is dropped.
struct Selector(Child);

impl Drop for Selector {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn pods_that_an_annotation_selects_are_paced_behind_veth() {
    let Some(node) = cgroup() else { return };
    let uids = [
        "0f5b2c1e-3d4a-4b6c-8d7e-9f0a1b2c3d4e",
        "1a2b3c4d-0000-4000-8000-000000000001",
    ];
    // As the kubelet names them, with its two drivers, and a container in each.
    let pods = [
        node.below(
            "kubepods.slice/kubepods-burstable.slice/\
             kubepods-burstable-pod0f5b2c1e_3d4a_4b6c_8d7e_9f0a1b2c3d4e.slice/\
             cri-containerd-1.scope",
        ),
        node.below(&format!("kubepods/besteffort/pod{}/1", uids[1])),
    ];
    let bench = Bench::new();
    let [four, ..] = bench.receivers();
    let arguments = ["--pacing-gain", "0.75", "--cgroups-by-command", "--no-cage"];
    let agent = bench.agent(&arguments);
    // By then it has no privilege left, and needs none.
    let capabilities = agent.status().capabilities;
    assert_eq!(capabilities.as_deref(), Some("none"));
    let api = ApiServer::new();
    api.put(uids[0], &[("rlcc/congestion-control", &bench.name)]);
    api.put(uids[1], &[("rlcc/congestion-control", "another")]);
    let mut selector = Command::new(BINARY);
    selector
        .args([
            "pods",
            "--node",
            "node-1",
            "--every",
            "0.2",
            "--name",
            &bench.name,
        ])
        .args([
            "--server",
            &api.url(),
            "--cgroup-root",
            text(node.directory()),
            "--socket",
        ])
        .arg(agent.socket())
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    let _selector = Selector(selector.spawn().expect("it starts"));
    let serves = |pods: &[&Cgroup]| {
        let above = |pod: &&Cgroup| pod.directory().parent().expect("a pod").to_owned();
        let expected: Vec<_> = pods.iter().map(above).collect();
        eventually("the selected pods are served", || {
            (agent.status().cgroups.as_ref() == Some(&expected)).then_some(())
        });
    };
    serves(&[&pods[0]]);
    let connect = |pod: &Cgroup| {
        let to = bench.network.sink.at(four);
        pod.within(|| Flow::connect_without_choice(bench.sender(), to))
            .sending()
    };
    let paced = connect(&pods[0]);
    let other = connect(&pods[1]);
    paced.advance(100_000);
    other.advance(100_000);
    assert_eq!(paced.congestion_control(), bench.name);
    assert_eq!(other.congestion_control(), "reno");
    drop(other);
    // There is no fq that would pace in the place of TCP's own timer.
    let mut qdisc = Command::new("tc");
    qdisc.args(["-n", bench.sender().name(), "qdisc", "show", "dev", "s0"]);
    let qdisc = qdisc.output().expect("tc is there").stdout;
    let qdisc = String::from_utf8_lossy(&qdisc).into_owned();
    assert!(qdisc.starts_with("qdisc noqueue"), "{qdisc}");
    // The rate that is asked for, which `ss -ti` shows as well: three quarters of cwnd over the
    // longest RTT of two round trips, which is no shorter than srtt. Without a decision TCP asks
    // for 1.2 to 2 times cwnd over srtt. So no more than three quarters of the cwnd are
    // outstanding; unpaced, all of it would be.
    let mut readings: Vec<[f64; 2]> = (0..50)
        .map(|_| {
            paced.advance(10_000);
            let info = paced.info();
            let cwnd = f64::from(info.snd_cwnd);
            let by_cwnd = cwnd * f64::from(info.snd_mss) / f64::from(info.rtt) * 1e6;
            [
                info.pacing_rate as f64 / by_cwnd,
                f64::from(info.unacked) / cwnd,
            ]
        })
        .collect();
    for (index, expected) in [(0, 0.3..0.77), (1, 0.3..0.9)] {
        readings.sort_by(|a, b| a[index].total_cmp(&b[index]));
        let median = readings[25][index];
        assert!(
            expected.contains(&median),
            "{index}: {median} of {readings:?}"
        );
    }

    // Only while the annotation selects it; a connection that is open keeps what it has.
    api.put(uids[0], &[]);
    api.put(uids[1], &[("rlcc/congestion-control", &bench.name)]);
    serves(&[&pods[1]]);
    assert_eq!(pods[0].within(|| bench.finds(four)), "reno");
    assert_eq!(pods[1].within(|| bench.finds(four)), bench.name);
    assert_eq!(paced.congestion_control(), bench.name);
    api.delete(uids[1]);
    serves(&[]);
    assert_eq!(pods[1].within(|| bench.finds(four)), "reno");
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
