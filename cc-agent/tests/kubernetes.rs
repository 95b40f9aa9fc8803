//! The manifest of the agent, against the types of the Kubernetes API, against the options of
//! `cc-agent`, and against what the agent needs and the documents say.

use cc_lab::manifest::{arguments, names, object};
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Container, Namespace, PodSpec, SecurityContext, ServiceAccount},
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};

const FILE: &str = "agent.yaml";
const NAME: &str = "rlcc-agent";
const BINARY: &str = env!("CARGO_BIN_EXE_cc-agent");

fn pod() -> PodSpec {
    let set: DaemonSet = object(FILE, "DaemonSet", NAME);
    let spec = set.spec;
    let labels = spec.template.metadata.and_then(|own| own.labels);
    assert_eq!(spec.selector.match_labels, labels);
    spec.template.spec.expect("a pod")
}

fn container<'a>(pod: &'a PodSpec, name: &str) -> &'a Container {
    let mut containers = pod.containers.iter();
    containers.find(|it| it.name == name).expect("it is there")
}

fn security(container: &Container) -> &SecurityContext {
    container.security_context.as_ref().expect("it has one")
}

#[test]
fn every_object_is_of_its_type_and_they_belong_together() {
    let namespace: Namespace = object(FILE, "Namespace", "rlcc");
    let account: ServiceAccount = object(FILE, "ServiceAccount", NAME);
    let _: ClusterRole = object(FILE, "ClusterRole", NAME);
    let binding: ClusterRoleBinding = object(FILE, "ClusterRoleBinding", NAME);
    let set: DaemonSet = object(FILE, "DaemonSet", NAME);
    assert_eq!(names(FILE).len(), 5);
    for metadata in [&account.metadata, &set.metadata] {
        assert_eq!(metadata.namespace, namespace.metadata.name);
    }
    let subjects = binding.subjects.expect("a subject");
    assert_eq!(subjects.len(), 1);
    assert_eq!(subjects[0].kind, "ServiceAccount");
    assert_eq!(subjects[0].namespace, namespace.metadata.name);
    for name in [&subjects[0].name, &binding.role_ref.name] {
        assert_eq!(name, NAME);
    }
    assert_eq!(pod().service_account_name.as_deref(), Some(NAME));
}

#[test]
fn the_service_account_may_list_and_watch_pods_and_nothing_else() {
    let role: ClusterRole = object(FILE, "ClusterRole", NAME);
    let rules = role.rules.expect("a rule");
    let [rule] = &rules[..] else {
        panic!("one rule: {rules:?}");
    };
    assert_eq!(rule.api_groups.as_deref(), Some(&[String::new()][..]));
    assert_eq!(rule.resources.as_deref(), Some(&["pods".to_owned()][..]));
    assert_eq!(rule.verbs, ["list", "watch"]);
    assert_eq!(role.aggregation_rule, None);
    // The token is in one container only.
    let account: ServiceAccount = object(FILE, "ServiceAccount", NAME);
    let pod = pod();
    for automatic in [
        account.automount_service_account_token,
        pod.automount_service_account_token,
    ] {
        assert_eq!(automatic, Some(false));
    }
    let has_token = |container: &&Container| {
        let mounts = container.volume_mounts.iter().flatten();
        mounts
            .into_iter()
            .any(|it| it.mount_path.contains("serviceaccount"))
    };
    let with_token: Vec<_> = pod.containers.iter().filter(has_token).collect();
    assert_eq!(with_token, [container(&pod, "pods")]);
}

#[test]
fn the_containers_run_what_there_is() {
    let pod = pod();
    let [agent, pods] = &arguments(&pod, BINARY)[..] else {
        panic!("two containers");
    };
    assert_eq!(agent[0], "run");
    assert!(agent.iter().any(|it| it == "--cgroups-by-command"));
    assert_eq!(pods[0], "pods");
    let own = container(&pod, "agent");
    for probe in [&own.readiness_probe, &own.liveness_probe] {
        let action = probe.as_ref().and_then(|probe| probe.exec.as_ref());
        let command = action.and_then(|action| action.command.as_deref());
        let expected = ["/usr/bin/cc-agent", "health"].map(str::to_owned);
        assert_eq!(command, Some(&expected[..]));
        // It looks at the agent twice, a second apart.
        assert!(probe.as_ref().and_then(|it| it.timeout_seconds) > Some(2));
    }
    // Where the image has the program.
    let image = include_str!("../../examples/kubernetes/agent.Containerfile");
    assert!(image.contains("ENTRYPOINT [\"/usr/bin/cc-agent\"]"));
    // Both see cgroups and the socket by the same paths.
    for volume in ["cgroup", "run"] {
        let place = |name: &str| {
            let mounts = container(&pod, name).volume_mounts.iter().flatten();
            let mount = mounts.into_iter().find(|mount| mount.name == volume);
            mount.expect(volume).mount_path.clone()
        };
        assert_eq!(place("agent"), place("pods"), "{volume}");
    }
}

#[test]
fn the_agent_has_the_capabilities_that_it_needs_and_no_others() {
    let pod = pod();
    let added = |name: &str| {
        let context = security(container(&pod, name));
        assert_eq!(context.privileged, Some(false));
        assert_eq!(context.allow_privilege_escalation, Some(false));
        assert_eq!(context.read_only_root_filesystem, Some(true));
        let capabilities = context.capabilities.clone().expect("they are named");
        assert_eq!(capabilities.drop, Some(vec!["ALL".to_owned()]));
        capabilities.add.unwrap_or_default()
    };
    let agent = added("agent");
    let expected = [
        "BPF",
        "PERFMON",
        "NET_ADMIN",
        "KILL",
        "SETGID",
        "SETUID",
        "SYS_NICE",
    ];
    assert_eq!(agent, expected);
    assert!(added("pods").is_empty());
    let document = include_str!("../../docs/deployment.md");
    for name in expected {
        assert!(document.contains(&format!("CAP_{name}")), "{name}");
    }
    assert_eq!((pod.host_network, pod.host_pid), (Some(false), Some(false)));
    assert_eq!((pod.host_ipc, pod.host_users), (None, None));
    for volume in pod.volumes.iter().flatten() {
        if let Some(host) = &volume.host_path {
            assert!(["/sys/fs/cgroup", "/run/cc-agent"].contains(&host.path.as_str()));
        }
    }
}
