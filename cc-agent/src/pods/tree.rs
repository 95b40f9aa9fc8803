//! Where the cgroups of pods are: found by their names in the tree of cgroup v2, whatever the
//! kubelet's driver, classes of service and root of cgroups are.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Levels of the tree that are searched. The kubelet puts pods on the second or third level below
/// its own root, which in a cluster of containers is some levels down itself.
const DEPTH: usize = 10;
/// Directories that are looked into, at most.
const DIRECTORIES: usize = 50_000;

/// The UID of the pod whose cgroup has this name; `None` when it is no pod's. The kubelet names it
/// `podUID`, or with the systemd driver `…-podUID.slice`, dashes of the UID replaced by underscores
/// (pkg/kubelet/cm/pod_container_manager_linux.go and cgroup_manager_linux.go, Kubernetes 1.34).
pub(super) fn pod_of(name: &Path) -> Option<String> {
    let name = name.to_str()?;
    let uid = match name.strip_suffix(".slice") {
        Some(slice) => slice.rsplit_once('-')?.1.strip_prefix("pod")?,
        None => name.strip_prefix("pod")?,
    };
    let is_uid = |c: char| c.is_ascii_hexdigit() || matches!(c, '-' | '_');
    // Those of static pods are hashes of 32 digits without dashes.
    let is_long_enough = uid.chars().filter(char::is_ascii_hexdigit).count() >= 4;
    (is_long_enough && uid.chars().all(is_uid)).then(|| uid.replace('_', "-"))
}

/// Finds the cgroups of these pods below a directory. Those that are not there are left out, and
/// what cannot be read is passed over.
pub(super) fn find(root: &Path, wanted: &BTreeSet<&str>) -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    let mut level = vec![root.to_owned()];
    let mut left = DIRECTORIES;
    for _ in 0..DEPTH {
        let mut below = Vec::new();
        for directory in level {
            if left == 0 || found.len() == wanted.len() {
                return found;
            }
            left -= 1;
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    continue;
                }
                match pod_of(Path::new(&entry.file_name())) {
                    Some(pod) if wanted.contains(pod.as_str()) => {
                        found.entry(pod).or_insert_with(|| entry.path());
                    }
                    // A pod holds its containers only.
                    Some(_) => {}
                    None => below.push(entry.path()),
                }
            }
        }
        level = below;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0f5b2c1e-3d4a-4b6c-8d7e-9f0a1b2c3d4e";

    #[test]
    fn names_of_both_drivers_are_pods() {
        for (name, expected) in [
            ("pod0f5b2c1e-3d4a-4b6c-8d7e-9f0a1b2c3d4e", Some(UID)),
            (
                "kubepods-burstable-pod0f5b2c1e_3d4a_4b6c_8d7e_9f0a1b2c3d4e.slice",
                Some(UID),
            ),
            (
                "kubelet-kubepods-pod0f5b2c1e_3d4a_4b6c_8d7e_9f0a1b2c3d4e.slice",
                Some(UID),
            ),
            (
                "kubepods-pod3f0b1c2d3e4f5a6b7c8d9e0f1a2b3c4d.slice",
                Some("3f0b1c2d3e4f5a6b7c8d9e0f1a2b3c4d"),
            ),
            ("podman", None),
            ("pod", None),
            ("pods", None),
            ("kubepods", None),
            ("kubepods.slice", None),
            ("kubepods-burstable.slice", None),
            ("cri-containerd-0f5b2c1e.scope", None),
            ("system-pod.slice", None),
            ("pod../../etc", None),
        ] {
            assert_eq!(pod_of(Path::new(name)).as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn pods_are_found_wherever_they_are() {
        let directory = tempfile::tempdir().expect("a directory");
        let root = directory.path();
        let places = [
            ("aaaa", "kubepods/podaaaa"),
            ("bbbb", "kubepods/burstable/podbbbb"),
            ("cccc-1", "kubepods.slice/kubepods-podcccc_1.slice"),
            (
                "dddd",
                "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-poddddd.slice",
            ),
            ("eeee", "x.slice/y.scope/kubelet/kubepods/podeeee"),
        ];
        for (_, place) in places {
            fs::create_dir_all(root.join(place).join("container")).expect("ours");
        }
        fs::create_dir_all(root.join("kubepods/podffff")).expect("ours");
        fs::write(root.join("pod9999"), "no directory").expect("ours");
        let wanted = BTreeSet::from(["aaaa", "bbbb", "cccc-1", "dddd", "eeee", "9999", "8888"]);
        let expected: BTreeMap<String, PathBuf> = places
            .into_iter()
            .map(|(pod, place)| (pod.to_owned(), root.join(place)))
            .collect();
        assert_eq!(find(root, &wanted), expected);
        assert!(find(Path::new("/nowhere"), &wanted).is_empty());
    }
}
