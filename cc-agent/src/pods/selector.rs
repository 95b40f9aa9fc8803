//! Which pods are selected, and what an agent is to be told of their cgroups: pure, events in,
//! changes out.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

use super::{objects::Metadata, tree::pod_of};

/// The annotation of pods whose connections are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Annotation {
    /// Its key, such as `rlcc/congestion-control`.
    pub key: String,
    /// The value that selects a pod.
    pub value: String,
}

impl fmt::Display for Annotation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.value)
    }
}

/// What the API server has told of the node's pods.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Event {
    /// These are all pods of the node.
    Listed(Vec<Metadata>),
    /// The pod is there, and has these annotations now.
    Is(Metadata),
    /// The pod is gone, or not of this node.
    Gone(Metadata),
}

/// What an agent is to be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// To serve the cgroup of a pod from now on.
    Add(PathBuf),
    /// To serve it no longer.
    Remove(PathBuf),
}

/// A pod whose annotation selects it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Selected {
    /// Its `NAMESPACE/NAME`, as people know it.
    name: String,
    /// What its cgroup is named after.
    cgroup: String,
}

/// The selection of a node's pods.
#[derive(Debug)]
pub(super) struct Selector {
    annotation: Annotation,
    /// The selected pods by their UIDs; `None` until all pods of the node are known.
    selected: Option<BTreeMap<String, Selected>>,
}

impl Selector {
    /// A selector that knows no pod yet, and leaves everything as it is until then.
    pub(super) fn new(annotation: Annotation) -> Self {
        Self {
            annotation,
            selected: None,
        }
    }

    /// Takes note of what the API server has told. Returns what is different now, in lines for
    /// people.
    pub(super) fn hear(&mut self, event: Event) -> Vec<String> {
        let before = self.selected.clone().unwrap_or_default();
        match event {
            Event::Listed(pods) => {
                let pods = pods.iter().filter(|pod| self.selects(pod));
                self.selected = Some(pods.map(entry).collect());
            }
            Event::Is(pod) if self.selects(&pod) => {
                let (uid, selected) = entry(&pod);
                self.selected.get_or_insert_default().insert(uid, selected);
            }
            Event::Is(pod) | Event::Gone(pod) => {
                self.selected.get_or_insert_default().remove(&pod.uid);
            }
        }
        let after = self.selected.as_ref();
        let is_new = |uid: &&String| !before.contains_key(*uid);
        let new = after.into_iter().flat_map(BTreeMap::keys).filter(is_new);
        let of = |pods: Option<&BTreeMap<_, Selected>>, uid: &String| {
            let pod = pods.and_then(|pods| pods.get(uid));
            pod.map_or_else(String::new, |pod| pod.name.clone())
        };
        let new = new.map(|uid| format!("pod {} ({uid}) is selected", of(after, uid)));
        let left = |uid: &&String| !after.is_some_and(|after| after.contains_key(*uid));
        let gone = before.keys().filter(left);
        let gone = gone.map(|uid| {
            format!(
                "pod {} ({uid}) is not selected any more",
                of(Some(&before), uid)
            )
        });
        new.chain(gone).collect()
    }

    /// Whether a selected pod's cgroup is not among those that were found.
    pub(super) fn misses(&self, found: &BTreeMap<String, PathBuf>) -> bool {
        (self.wanted()).any(|cgroup| !found.contains_key(cgroup))
    }

    /// The pods whose cgroups are to be found, by what these are named after.
    pub(super) fn wanted(&self) -> impl Iterator<Item = &str> {
        let selected = self.selected.iter().flat_map(BTreeMap::values);
        selected.map(|pod| pod.cgroup.as_str())
    }

    /// What an agent that serves these cgroups by command is to be asked for. Those that are no
    /// pod's are left alone: somebody else has named them.
    pub(super) fn changes(
        &self,
        found: &BTreeMap<String, PathBuf>,
        served: &[PathBuf],
    ) -> Vec<Change> {
        if self.selected.is_none() {
            return Vec::new();
        }
        let wanted: Vec<&PathBuf> = (self.wanted())
            .filter_map(|cgroup| found.get(cgroup))
            .collect();
        let is_stale = |directory: &&PathBuf| match directory.file_name().map(Path::new) {
            Some(name) => pod_of(name).is_some_and(|pod| !self.wanted().any(|it| it == pod)),
            None => false,
        };
        let stale = served.iter().filter(is_stale).cloned();
        let missing = wanted.into_iter().filter(|it| !served.contains(it));
        stale
            .map(Change::Remove)
            .chain(missing.cloned().map(Change::Add))
            .collect()
    }

    fn selects(&self, pod: &Metadata) -> bool {
        pod.annotations.get(&self.annotation.key) == Some(&self.annotation.value)
    }
}

fn entry(pod: &Metadata) -> (String, Selected) {
    let selected = Selected {
        name: format!("{}/{}", pod.namespace, pod.name),
        cgroup: pod.cgroup().to_owned(),
    };
    (pod.uid.clone(), selected)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEY: &str = "rlcc/congestion-control";

    fn selector() -> Selector {
        Selector::new(Annotation {
            key: KEY.into(),
            value: "rlcc".into(),
        })
    }

    fn pod(uid: &str, value: Option<&str>) -> Metadata {
        Metadata {
            namespace: "default".into(),
            name: format!("pod-{uid}"),
            uid: uid.into(),
            annotations: (value.map(|value| (KEY.to_owned(), value.to_owned())))
                .into_iter()
                .collect(),
            ..Metadata::default()
        }
    }

    fn directory(uid: &str) -> PathBuf {
        format!("/sys/fs/cgroup/kubepods/pod{uid}").into()
    }

    fn found(uids: &[&str]) -> BTreeMap<String, PathBuf> {
        let found = uids.iter().map(|uid| ((*uid).to_owned(), directory(uid)));
        found.collect()
    }

    #[test]
    fn the_annotation_selects_and_its_loss_ends_it() {
        let mut selector = selector();
        let pods = vec![
            pod("aaaa", Some("rlcc")),
            pod("bbbb", None),
            pod("cccc", Some("no")),
        ];
        let news = selector.hear(Event::Listed(pods));
        assert_eq!(news, ["pod default/pod-aaaa (aaaa) is selected"]);
        let all = found(&["aaaa", "bbbb", "cccc"]);
        assert_eq!(
            selector.changes(&all, &[]),
            [Change::Add(directory("aaaa"))]
        );
        assert!(selector.changes(&all, &[directory("aaaa")]).is_empty());

        selector.hear(Event::Is(pod("bbbb", Some("rlcc"))));
        let news = selector.hear(Event::Is(pod("aaaa", None)));
        assert_eq!(
            news,
            ["pod default/pod-aaaa (aaaa) is not selected any more"]
        );
        let expected = [
            Change::Remove(directory("aaaa")),
            Change::Add(directory("bbbb")),
        ];
        assert_eq!(selector.changes(&all, &[directory("aaaa")]), expected);

        assert!(
            selector
                .hear(Event::Is(pod("bbbb", Some("rlcc"))))
                .is_empty()
        );
        selector.hear(Event::Gone(pod("bbbb", Some("rlcc"))));
        let expected = [Change::Remove(directory("bbbb"))];
        assert_eq!(selector.changes(&all, &[directory("bbbb")]), expected);
    }

    #[test]
    fn nothing_changes_before_all_pods_are_known() {
        let selector = selector();
        assert!(
            selector
                .changes(&found(&["aaaa"]), &[directory("aaaa")])
                .is_empty()
        );
        assert!(!selector.misses(&found(&[])));
    }

    #[test]
    fn a_cgroup_that_is_not_there_yet_is_missed() {
        let mut selector = selector();
        selector.hear(Event::Listed(vec![pod("aaaa", Some("rlcc"))]));
        assert!(selector.misses(&found(&["bbbb"])));
        assert!(selector.changes(&found(&["bbbb"]), &[]).is_empty());
        assert!(!selector.misses(&found(&["aaaa", "bbbb"])));
    }

    #[test]
    fn cgroups_that_are_no_pods_are_left_alone() {
        let mut selector = selector();
        selector.hear(Event::Listed(Vec::new()));
        let others = ["/sys/fs/cgroup/a.slice", "/sys/fs/cgroup/podman", "/"].map(PathBuf::from);
        assert!(selector.changes(&found(&[]), &others).is_empty());
    }

    proptest! {
        /// Whatever was served, an agent that carries out the changes serves the selected pods that
        /// are there and what no pod is, and is asked nothing more.
        #[test]
        fn changes_lead_to_what_is_selected(
            selected in proptest::collection::btree_set("[0-9a-f]{4}", 0..8),
            there in proptest::collection::btree_set("[0-9a-f]{4}", 0..8),
            served in proptest::collection::btree_set("[0-9a-f]{4}", 0..8),
        ) {
            let mut selector = selector();
            let pods = selected.iter().map(|uid| pod(uid, Some("rlcc"))).collect();
            selector.hear(Event::Listed(pods));
            let there: Vec<&str> = (there.union(&selected)).map(String::as_str).collect();
            let found = found(&there);
            let foreign = PathBuf::from("/sys/fs/cgroup/a.slice");
            let mut now: Vec<PathBuf> = served.iter().map(|uid| directory(uid)).collect();
            now.push(foreign.clone());
            for change in selector.changes(&found, &now) {
                match change {
                    Change::Add(it) => { prop_assert!(!now.contains(&it)); now.push(it); }
                    Change::Remove(it) => now.retain(|other| *other != it),
                }
            }
            prop_assert!(selector.changes(&found, &now).is_empty());
            prop_assert!(now.contains(&foreign));
            let mut expected: Vec<PathBuf> = selected.iter().map(|uid| directory(uid)).collect();
            expected.push(foreign);
            now.sort();
            expected.sort();
            prop_assert_eq!(now, expected);
        }
    }
}
