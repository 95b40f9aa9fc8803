//! The services of the package that an operator sets up beside the agent, under a real systemd: one
//! that follows a channel of policies, and a policy server.

use std::{fs, process::Command};

use cc_core::status::Snapshot;
use cc_lab::{Bottleneck, Network, eventually, unique_name};
use tempfile::TempDir;

use crate::{
    debian::{package, stripped},
    system::System,
    under_systemd,
};

const POLICY: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../cc-agent/core/src/policy/default.onnx"
);
/// An authority, and certificates that it has signed for server and agent, as docs/remote.md makes
/// them.
const CERTIFICATES: &str = r#"
set -e
mkdir -p /etc/cc-agent
cd /etc/cc-agent
new="openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
$new -x509 -days 365 -subj "/CN=rlcc CA" -keyout ca.key -out ca.pem
for whose in server agent; do
    $new -subj "/CN=$whose" -keyout $whose.key -out $whose.csr
    echo "subjectAltName=DNS:localhost" > $whose.ext
    openssl x509 -req -in $whose.csr -CA ca.pem -CAkey ca.key -days 365 -extfile $whose.ext \
        -out $whose.pem
    chgrp cc-agent $whose.key
    chmod 640 $whose.key
done
"#;
/// What the agent's unit needs to ask a server, as docs/remote.md has it.
const MAY_ASK: &str =
    "[Service]\nRestrictAddressFamilies=AF_UNIX AF_INET AF_INET6\nIPAddressDeny=\n";

/// What is missing for the test; `None` when nothing is.
pub(crate) fn missing() -> Option<String> {
    under_systemd::missing().or_else(|| {
        let starts = Command::new("openssl").arg("version").output().is_ok();
        (!starts).then(|| "there is no openssl".to_owned())
    })
}

pub(crate) fn the_services_beside_the_agent_do_their_work() {
    let _exclusive = cc_lab::exclusive();
    let directory = TempDir::new().expect("a directory for the test");
    let deb = package(
        &stripped(directory.path()),
        &directory.path().join("out"),
        "0",
    );
    let network = Network::through(Bottleneck {
        rate_mbit: 50,
        queue_bytes: 500_000,
    });
    let system = System::boot(&network.path.sender);
    system.install(&deb);
    let write = |path: &str, text: &str| {
        let path = system.seen(path);
        let parent = path.parent().expect("it is a file");
        fs::create_dir_all(parent).expect("it is the test's own");
        fs::write(path, text).expect("it is the test's own");
    };
    let name = unique_name();
    let socket = system.seen(&format!("/run/cc-agent/{name}.sock"));
    let status_when = |what: &str, holds: &dyn Fn(&Snapshot) -> bool| {
        eventually(what, || cc_client::fetch(&socket).ok().filter(holds))
    };
    write("/etc/cc-agent.toml", &format!("name = {name:?}\n"));
    system.succeed("systemctl start cc-agent 2>&1");

    // What is published is served.
    system.succeed("mkdir /srv/policies");
    let mut policy = fs::read(POLICY).expect("it is in the repository");
    // The same policy as another file: the name of its producer comes once more.
    policy.extend(b"\x12\x01x");
    fs::write(system.seen("/srv/policy.onnx"), policy).expect("there is room");
    let key = system.succeed("cc-agent channel-key /srv/channel.pem");
    let key = key.lines().last().expect("it prints the public key");
    let publish = "cc-agent publish /srv/policy.onnx --channel /srv/policies --key";
    system.succeed(&format!("{publish} /srv/channel.pem 2>&1"));
    system.succeed("chmod -R a+rX /srv/policies");
    write(
        "/etc/default/cc-agent-follow",
        &format!(
            "FOLLOW_ARGUMENTS=\"--channel /srv/policies --key {key} --name {name} --every 1\"\n"
        ),
    );
    system.succeed("systemctl start cc-agent-follow 2>&1");
    let published = system.succeed("sha256sum /srv/policy.onnx");
    let published = published.split(' ').next().expect("it prints the hash");
    status_when("the published policy is served", &|status| {
        status.policy_sha256.as_deref() == Some(published)
    });
    eventually("it tells so", || {
        let page = system.metrics(9468);
        page.contains("\nrlcc_follow_in_service 1").then_some(())
    });
    ends_well(&system, "cc-agent-follow");

    // A policy server decides, dies, and decides again.
    system.succeed(CERTIFICATES);
    let files = |whose: &str, options: [&'static str; 3]| {
        let [certificate, key, authority] = options;
        [
            (certificate, format!("/etc/cc-agent/{whose}.pem")),
            (key, format!("/etc/cc-agent/{whose}.key")),
            (authority, "/etc/cc-agent/ca.pem".to_owned()),
        ]
    };
    let mut arguments = "--policy default --listen 127.0.0.1:7443".to_owned();
    for (option, file) in files("server", ["tls-cert", "tls-key", "client-ca"]) {
        arguments += &format!(" --{option} {file}");
    }
    write(
        "/etc/default/cc-agent-policy-server",
        &format!("POLICY_SERVER_ARGUMENTS=\"{arguments}\"\n"),
    );
    system.succeed("systemctl start cc-agent-policy-server 2>&1");
    system.await_running("cc-agent-policy-server");
    let mut options = format!("name = {name:?}\npolicy = 'grpcs://localhost:7443'\n");
    for (option, file) in files("agent", ["remote_cert", "remote_key", "remote_ca"]) {
        options += &format!("{option} = {file:?}\n");
    }
    write("/etc/cc-agent.toml", &options);
    write("/etc/systemd/system/cc-agent.service.d/ask.conf", MAY_ASK);
    system.succeed("systemctl daemon-reload && systemctl restart cc-agent 2>&1");
    let flow = network.connect(&name).sending();
    let answered = |status: &Snapshot| status.remote.as_ref().map_or(0, |it| it.counts.answered);
    status_when("the server decides", &|status| answered(status) > 10);
    system.succeed("systemctl kill --signal KILL cc-agent-policy-server");
    status_when("the agent is without it", &|status| {
        status.remote.as_ref().is_some_and(|it| !it.connected)
    });
    let back = status_when("it is back", &|status| {
        status.remote.as_ref().is_some_and(|it| it.connected)
    });
    status_when("it decides again", &|status| {
        answered(status) > answered(&back) + 10
    });
    assert_eq!(system.show("cc-agent-policy-server", "NRestarts"), "1");
    flow.advance(100_000);
    drop(flow);
    ends_well(&system, "cc-agent-policy-server");
    ends_well(&system, "cc-agent");
}

/// Stops a service, which must have run as its unit says and end by itself.
fn ends_well(system: &System, unit: &str) {
    system.succeed(&format!("systemctl stop {unit}"));
    assert_eq!(system.show(unit, "Result"), "success", "{unit}");
    let service = unit.strip_prefix("cc-").expect("a unit of the package");
    let service = service.strip_prefix("agent-").unwrap_or(service);
    let log = system.succeed(&format!("journalctl --no-pager CC_SERVICE={service}"));
    assert!(!log.contains("-- No entries --"), "{unit} has a journal");
}
