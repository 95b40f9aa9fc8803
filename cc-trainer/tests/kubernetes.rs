//! The manifests of examples/kubernetes, against the types of the Kubernetes API and against the
//! command that their containers run.

use cc_lab::manifest::{arguments, object};
use k8s_openapi::{
    api::{
        apps::v1::{Deployment, StatefulSet},
        autoscaling::v2::HorizontalPodAutoscaler,
        core::v1::{PodSpec, Service},
    },
    apimachinery::pkg::util::intstr::IntOrString,
};

/// The arguments of a pod's only container, which the binary knows.
fn options(pod: &PodSpec) -> Vec<String> {
    let mut all = arguments(pod, env!("CARGO_BIN_EXE_cc-trainer"));
    assert_eq!(all.len(), 1, "a pod has one container");
    all.remove(0)
}

#[test]
fn the_learner_is_what_its_service_and_its_workers_expect() {
    let learner: StatefulSet = object("learner.yaml", "StatefulSet", "rlcc-learner");
    let spec = learner.spec;
    let labels = spec
        .template
        .metadata
        .and_then(|own| own.labels)
        .expect("labels");
    assert_eq!(
        (spec.replicas, spec.selector.match_labels),
        (Some(1), Some(labels.clone()))
    );
    let pod = spec.template.spec.expect("a pod");
    let options = options(&pod);
    // The volume of the claim holds the run.
    let claims = spec.volume_claim_templates.expect("a claim");
    let mounts = pod.containers[0].volume_mounts.clone().expect("mounts");
    let claim = claims[0].metadata.name.clone().expect("a name");
    let run = mounts
        .iter()
        .find(|mount| mount.name == claim)
        .expect("it is mounted");
    let out = format!("--out={}", run.mount_path);
    assert!(
        options.iter().any(|option| option.starts_with(&out)),
        "{options:?}"
    );

    let service: Service = object("learner.yaml", "Service", "rlcc-learner");
    let service_spec = service.spec.expect("a specification");
    assert_eq!(service_spec.selector, Some(labels));
    assert_eq!(
        spec.service_name.as_deref(),
        service.metadata.name.as_deref()
    );
    let ports = pod.containers[0].ports.clone().expect("ports");
    for port in service_spec.ports.expect("ports") {
        let Some(IntOrString::String(name)) = &port.target_port else {
            panic!("a port by its name: {port:?}");
        };
        let own = ports
            .iter()
            .find(|own| own.name.as_ref() == Some(name))
            .expect("it is open");
        assert_eq!(own.container_port, port.port);
        let address = format!("=0.0.0.0:{}", port.port);
        assert!(
            options.iter().any(|option| option.ends_with(&address)),
            "{name}"
        );
    }
}

#[test]
fn workers_and_replicas_find_the_learner_and_are_given_time_to_end() {
    for (file, name) in [
        ("workers.yaml", "rlcc-worker"),
        ("replicas.yaml", "rlcc-replica"),
    ] {
        let deployment: Deployment = object(file, "Deployment", name);
        let spec = deployment.spec;
        let labels = spec.template.metadata.and_then(|own| own.labels);
        assert_eq!(spec.selector.match_labels, labels);
        let pod = spec.template.spec.expect("a pod");
        assert!(pod.termination_grace_period_seconds >= Some(10));
        let options = options(&pod);
        let learner = "--learner=grpcs://rlcc-learner:7555";
        assert!(
            options.iter().any(|option| option == learner),
            "{options:?}"
        );
    }
}

#[test]
fn workers_are_scaled_by_a_metric_of_the_learner() {
    let scaler: HorizontalPodAutoscaler =
        object("workers.yaml", "HorizontalPodAutoscaler", "rlcc-worker");
    let spec = scaler.spec;
    let target: Deployment = object("workers.yaml", "Deployment", &spec.scale_target_ref.name);
    // A number of its own would be restored whenever the manifest is applied.
    assert_eq!(target.spec.replicas, None);
    let metrics = spec.metrics.expect("a metric");
    let metric = metrics[0].object.as_ref().expect("of an object");
    let _: Service = object("learner.yaml", "Service", &metric.described_object.name);
    let page = include_str!("../src/train/metrics/page.rs");
    let name = metric
        .metric
        .name
        .strip_prefix("cc_trainer_")
        .expect("of the trainer");
    assert!(
        page.contains(&format!("\"{name}\"")),
        "{name} is on the page"
    );
}
