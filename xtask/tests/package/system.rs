//! A whole system of its own: systemd as the first process of new namespaces, over this host's
//! files, of which it changes none.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use cc_lab::{Cgroup, Namespace, eventually};
use tempfile::TempDir;

const SYSTEMD: &str = "/lib/systemd/systemd";

/// What the first process does before it is systemd. Its argument is an empty directory.
const BOOT: &str = r#"
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
cd "$1"
mkdir upper work root
mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work root
cd root
for place in tmp run dev; do mount -t tmpfs tmpfs $place; done
for node in null zero full random urandom tty; do
    touch dev/$node
    mount --bind /dev/$node dev/$node
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mount -t proc proc proc
mount -t sysfs sysfs sys
mkdir -p sys/fs/cgroup
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t bpf bpf sys/fs/bpf
# What would change this host's kernel, or waits for its devices.
for unit in systemd-sysctl systemd-udevd systemd-udev-trigger systemd-modules-load \
    systemd-binfmt systemd-timesyncd systemd-resolved systemd-networkd; do
    ln -sf /dev/null etc/systemd/system/$unit.service
done
mkdir -p tmp/former
pivot_root . tmp/former
umount -l /tmp/former
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --unit=basic.target --log-target=journal --show-status=false
"#;

/// A running systemd. It and all that runs below it are killed when it is dropped.
pub(crate) struct System {
    /// `unshare`, whose death kills its child.
    parent: Child,
    /// The first process, as this host counts.
    pid: u32,
    _directory: TempDir,
    _cgroup: Cgroup,
}

impl System {
    /// What this host lacks for one; `None` where it can be tried.
    pub(crate) fn missing() -> Option<String> {
        if !Path::new(SYSTEMD).exists() {
            return Some(format!("there is no {SYSTEMD}"));
        }
        let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
        if !known.lines().any(|line| line.ends_with("\toverlay")) {
            return Some("the kernel has no overlayfs".to_owned());
        }
        Cgroup::new().err()
    }

    /// Boots one whose network is this namespace.
    ///
    /// # Panics
    ///
    /// Panics if it has not reached its basic.target after 30 s.
    pub(crate) fn boot(network: &Namespace) -> Self {
        let directory = TempDir::new().expect("a directory for the test");
        let cgroup = Cgroup::new().expect("it was tried before");
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--pid", "--uts", "--ipc", "--cgroup"])
            .args(["--fork", "--kill-child", "sh", "-c", BOOT, "sh"])
            .arg(directory.path())
            .stdin(Stdio::null());
        network.hold(&mut command);
        // In its group no signal of a terminal reaches it.
        command.process_group(0);
        let parent = cgroup.within(|| command.spawn().expect("unshare is part of util-linux"));
        let mut system = Self {
            parent,
            pid: 0,
            _directory: directory,
            _cgroup: cgroup,
        };
        let parent = system.parent.id();
        system.pid = eventually("the first process starts", || {
            let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
            children.ok()?.split_whitespace().next()?.parse().ok()
        });
        eventually("systemd has booted", || {
            let active = system.run("systemctl is-active basic.target");
            active.status.success().then_some(())
        });
        system
    }

    /// Runs a command line inside, and returns how it ended and what it printed.
    pub(crate) fn run(&self, line: &str) -> Output {
        let pid = self.pid.to_string();
        Command::new("nsenter")
            .args(["--target", &pid])
            .args(["--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup"])
            .args(["sh", "-c", line])
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::null())
            .output()
            .expect("nsenter is part of util-linux")
    }

    /// Runs a command line inside that must succeed, and returns what it printed, trimmed.
    ///
    /// # Panics
    ///
    /// Panics if it fails, with all that it printed.
    pub(crate) fn succeed(&self, line: &str) -> String {
        let output = self.run(line);
        assert!(output.status.success(), "{line}: {output:?}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Installs a package, and returns what that printed.
    pub(crate) fn install(&self, deb: &Path) -> String {
        fs::copy(deb, self.seen("/tmp/cc-agent.deb")).expect("there is room");
        self.succeed(
            "DEBIAN_FRONTEND=noninteractive dpkg --force-confold -i /tmp/cc-agent.deb 2>&1",
        )
    }

    /// A property of a unit.
    pub(crate) fn show(&self, unit: &str, property: &str) -> String {
        self.succeed(&format!(
            "systemctl show --property {property} --value {unit}"
        ))
    }

    /// Waits until a service runs.
    pub(crate) fn await_running(&self, unit: &str) {
        eventually(&format!("{unit} runs"), || {
            let state = self.show(unit, "ActiveState");
            (state == "active" && self.show(unit, "SubState") == "running").then_some(())
        });
    }

    /// The page of metrics at a port, which there must be within 30 s.
    pub(crate) fn metrics(&self, port: u16) -> String {
        let url = format!("http://127.0.0.1:{port}/metrics");
        let fetch = format!(
            "python3 -c \"import urllib.request as r; print(r.urlopen('{url}').read().decode())\""
        );
        let page = eventually(&format!("there is a page at {url}"), || {
            let page = self.run(&fetch);
            page.status.success().then_some(page.stdout)
        });
        String::from_utf8_lossy(&page).into_owned()
    }

    /// The path by which this host sees a file of the system's.
    pub(crate) fn seen(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.pid))
    }
}

impl Drop for System {
    fn drop(&mut self) {
        // The first process of a namespace takes all others of it along.
        let _ = self.parent.kill();
        let _ = self.parent.wait();
        let processes = format!("/proc/{}", self.pid);
        eventually("the system is gone", || {
            (self.pid == 0 || !Path::new(&processes).exists()).then_some(())
        });
    }
}
