//! The manifests of examples/kubernetes, against the types of the Kubernetes API and against the
//! program that their containers run.

use std::{collections::BTreeMap, fs, path::PathBuf, process::Command};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// Returns an object of a manifest as its type in the API, which has a field for everything that
/// the manifest says.
///
/// # Panics
///
/// Panics if the object is not in the file, or says something that its type does not know.
pub fn object<T: DeserializeOwned + Serialize>(file: &str, kind: &str, name: &str) -> T {
    let key = (kind.to_owned(), name.to_owned());
    let given = objects(file).remove(&key).expect("it is in the file");
    let typed: T = serde_json::from_value(given.clone()).expect(name);
    let known = serde_json::to_value(&typed).expect("plain data");
    assert_known(&given, &known, &format!("{file}: {kind} {name}"));
    typed
}

/// Returns the kinds and names of a manifest's objects.
///
/// # Panics
///
/// Panics if the file is none of objects.
pub fn names(file: &str) -> Vec<(String, String)> {
    objects(file).into_keys().collect()
}

/// The objects of a manifest, by kind and name.
fn objects(file: &str) -> BTreeMap<(String, String), Value> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/kubernetes");
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

/// Returns the arguments of each of a pod's containers.
///
/// # Panics
///
/// Panics if the program does not know one of them, if a volume of the pod is mounted nowhere, and
/// if a container mounts no volume that has a file that an option of its names.
pub fn arguments(pod: &impl Serialize, program: &str) -> Vec<Vec<String>> {
    let pod = serde_json::to_value(pod).expect("plain data");
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let containers = list(&pod["containers"]);
    let mounts = |container: &Value| list(&container["volumeMounts"]);
    let all: Vec<Value> = containers.iter().flat_map(mounts).collect();
    for volume in list(&pod["volumes"]) {
        let is_mounted = all.iter().any(|mount| mount["name"] == volume["name"]);
        assert!(is_mounted, "{volume} is mounted nowhere");
    }
    let of = |container: &Value| {
        let arguments: Vec<String> = list(&container["args"]).iter().map(text).collect();
        // All arguments before it are read first.
        let parsed = Command::new(program)
            .args(&arguments)
            .arg("--help")
            .output();
        let parsed = parsed.expect("the program");
        let message = String::from_utf8_lossy(&parsed.stderr);
        assert!(parsed.status.success(), "{arguments:?}: {message}");
        for argument in &arguments {
            let Some((_, path)) = argument.split_once("=/") else {
                continue;
            };
            let is_within = |mount: &Value| {
                let place = mount["mountPath"].as_str().expect("text");
                format!("/{path}").starts_with(place)
            };
            assert!(mounts(container).iter().any(is_within), "{argument}");
        }
        arguments
    };
    containers.iter().map(of).collect()
}
