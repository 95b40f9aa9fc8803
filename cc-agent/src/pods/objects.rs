//! What is read of the API server's answers: the metadata of pods, and nothing else of them.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The annotation of the API's copy of a static pod: the UID that the kubelet knows the pod by.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Metadata of an object (`ObjectMeta`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Metadata {
    /// The namespace that the pod is in.
    pub namespace: String,
    /// The pod's name, which a later pod may have again.
    pub name: String,
    /// The pod's UID, which no other pod ever has.
    pub uid: String,
    /// Version of the object, opaque.
    pub resource_version: String,
    /// All annotations of the pod.
    #[serde(deserialize_with = "null_is_default")]
    pub annotations: BTreeMap<String, String>,
}

impl Metadata {
    /// What the pod's cgroup is named after: its UID, or for a static pod that of its manifest.
    pub(super) fn cgroup(&self) -> &str {
        self.annotations.get(MIRROR).unwrap_or(&self.uid)
    }
}

/// An object of the API.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Object {
    /// What the object is called, and its annotations.
    pub metadata: Metadata,
}

/// A list of objects, complete as of a version.
#[derive(Debug, Deserialize)]
pub(super) struct List {
    /// The version that the list is complete as of.
    pub metadata: ListMetadata,
    /// The objects that were there then.
    #[serde(deserialize_with = "null_is_default")]
    pub items: Vec<Object>,
}

/// Metadata of a list (`ListMeta`).
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListMetadata {
    /// The version from which on changes may be watched.
    pub resource_version: String,
}

/// Why a request is refused (`Status`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Refusal {
    /// Status code of HTTP, also within a watch.
    pub code: u16,
    /// The reason for it, for people.
    pub message: String,
}

/// A line of a watch (`WatchEvent`).
#[derive(Debug, Deserialize)]
#[serde(tag = "type", content = "object", rename_all = "UPPERCASE")]
pub(super) enum WatchLine {
    /// The object is new, or was there when the watch began.
    Added(Object),
    /// The object has changed to this one.
    Modified(Object),
    /// The object is gone, or does not belong to what is watched any more.
    Deleted(Object),
    /// Nothing has changed up to this version.
    Bookmark(Object),
    /// The watch ends, for this reason.
    Error(Refusal),
}

/// Go writes null for a list or map that is empty.
fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_watches_are_read_as_an_api_server_writes_them() {
        let list = r#"{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1",
            "metadata":{"resourceVersion":"17","remainingItemCount":null},
            "items":[{"metadata":{"name":"a","namespace":"n","uid":"u",
                "creationTimestamp":"2026-01-01T00:00:00Z","annotations":{"k":"v"}}},
                {"metadata":{"name":"b","namespace":"n","uid":"w","annotations":null}}]}"#;
        let list: List = serde_json::from_str(list).expect("a list");
        assert_eq!(list.metadata.resource_version, "17");
        assert_eq!(list.items[0].metadata.annotations["k"], "v");
        assert_eq!(list.items[1].metadata.cgroup(), "w");
        let empty = r#"{"metadata":{"resourceVersion":"1"},"items":null}"#;
        let empty: List = serde_json::from_str(empty).expect("a list");
        assert!(empty.items.is_empty());

        let line = r#"{"type":"BOOKMARK","object":{"kind":"Pod",
            "metadata":{"resourceVersion":"20","creationTimestamp":null}}}"#;
        let line: WatchLine = serde_json::from_str(line).expect("a bookmark");
        assert!(matches!(line, WatchLine::Bookmark(it) if it.metadata.resource_version == "20"));
        let line = r#"{"type":"ERROR","object":{"kind":"Status","status":"Failure",
            "message":"too old resource version","reason":"Expired","code":410}}"#;
        let line: WatchLine = serde_json::from_str(line).expect("an error");
        assert!(matches!(line, WatchLine::Error(it) if it.code == 410));
    }

    #[test]
    fn the_cgroup_of_a_static_pod_is_named_after_its_manifest() {
        let mirror = r#"{"uid":"of-the-mirror","annotations":
            {"kubernetes.io/config.mirror":"0123abcd"}}"#;
        let mirror: Metadata = serde_json::from_str(mirror).expect("metadata");
        assert_eq!(mirror.cgroup(), "0123abcd");
    }
}
