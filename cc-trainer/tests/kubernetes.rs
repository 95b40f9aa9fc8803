//! The manifests of examples/kubernetes, against the types of the Kubernetes API and against the
//! command that their containers run.

use std::{collections::BTreeMap, fs, path::PathBuf, process::Command};

use k8s_openapi::{
    api::{
        apps::v1::{Deployment, StatefulSet},
        autoscaling::v2::HorizontalPodAutoscaler,
        core::v1::{PodSpec, Service},
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// The objects of a manifest, by kind and name.
fn objects(file: &str) -> BTreeMap<(String, String), Value> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../examples/kubernetes");
    let text = fs::read_to_string(folder.join(file)).expect(file);
    let objects: Vec<Value> = serde_saphyr::from_multiple(&text).expect(file);
    (objects.into_iter())
        .map(|object| {
            let text = |value: &Value| value.as_str().expect("text").to_owned();
            let key = (text(&object["kind"]), text(&object["metadata"]["name"]));
            (key, object)
        })
        .collect()
}

/// An object as its type in the API, which has a field for everything that it says.
fn object<T: DeserializeOwned + Serialize>(file: &str, kind: &str, name: &str) -> T {
    let key = (kind.to_owned(), name.to_owned());
    let given = objects(file).remove(&key).expect("it is in the file");
    let typed: T = serde_json::from_value(given.clone()).expect(name);
    let known = serde_json::to_value(&typed).expect("plain data");
    assert_known(&given, &known, &format!("{file}: {kind} {name}"));
    typed
}

/// What the type does not know is lost on the way through it.
fn assert_known(given: &Value, known: &Value, path: &str) {
    match (given, known) {
        (Value::Object(given), Value::Object(known)) => {
            for (name, given) in given {
                let path = format!("{path}.{name}");
                let known = known
                    .get(name)
                    .unwrap_or_else(|| panic!("{path}: no such field"));
                assert_known(given, known, &path);
            }
        }
        (Value::Array(given), Value::Array(known)) => {
            for (at, (given, known)) in given.iter().zip(known).enumerate() {
                assert_known(given, known, &format!("{path}[{at}]"));
            }
        }
        _ => assert_eq!(given, known, "{path}"),
    }
}

/// Checks that the binary has the options that a pod's container gives, and returns them.
fn options(pod: &PodSpec) -> Vec<String> {
    let [container] = &pod.containers[..] else {
        panic!("a pod has one container");
    };
    let options = container.args.clone().expect("the command's arguments");
    let parsed = Command::new(env!("CARGO_BIN_EXE_cc-trainer"))
        .args(&options)
        // All arguments before it are read first.
        .arg("--help")
        .output()
        .expect("the binary");
    let message = String::from_utf8_lossy(&parsed.stderr);
    assert!(parsed.status.success(), "{options:?}: {message}");
    options
}

/// Checks that each volume is mounted, and each file that an option names is in a mounted one.
fn assert_mounted(pod: &PodSpec, options: &[String]) {
    let mounts = pod.containers[0].volume_mounts.as_deref().unwrap_or(&[]);
    for volume in pod.volumes.as_deref().unwrap_or(&[]) {
        assert!(
            mounts.iter().any(|mount| mount.name == volume.name),
            "{}",
            volume.name
        );
    }
    for option in options {
        if let Some((_, path)) = option.split_once("=/") {
            let is_within = |mount: &str| format!("/{path}").starts_with(mount);
            assert!(
                mounts.iter().any(|mount| is_within(&mount.mount_path)),
                "{option}"
            );
        }
    }
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
    assert_mounted(&pod, &options);

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
        assert_mounted(&pod, &options);
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
