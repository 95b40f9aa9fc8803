//! The permissions of recordings. The umask belongs to the process, so this test has one of its
//! own.

use std::{fs, os::unix::fs::MetadataExt, path::Path, sync::Arc, time::Duration};

use bytemuck::Zeroable;
use cc_core::{
    interface::Interface,
    reward::Terms,
    rows::{AddressForm, FileHeader, Recorded, Row},
};
use cc_ebpf::WindowRecord;
use cc_recording::{Limits, Recorder, files};
use rustix::fs::Mode;

#[test]
fn modes_do_not_depend_on_the_umask() {
    let place = tempfile::tempdir().expect("a scratch directory");
    rustix::process::umask(Mode::empty());
    let directory = place.path().join("new/recordings");
    let limits = Limits {
        directory: directory.clone(),
        file_bytes: 1 << 20,
        file_age: Duration::from_secs(3_600),
        group_age: Duration::from_secs(3_600),
        total_bytes: 1 << 30,
    };
    let header = FileHeader {
        interface: Interface::default(),
        policy: "fixed:10".into(),
        policy_metadata: None,
        server: None,
        agent_version: "0.1.0".into(),
        kernel: "6.18.0".into(),
        host: [].into(),
        started_ns: 1,
        utc_offset_ns: 2,
        addresses: AddressForm::Plain,
    };
    let row = Row {
        flow: 7,
        sequence: 0,
        window: WindowRecord::zeroed(),
        path: None,
        initial_cwnd_bytes: 14_480,
        decision: None,
        terms: Terms::default(),
        reward: 0.0,
        end: true,
        local: None,
        remote: None,
        cgroup: 1,
        cookie: 0,
        netns: 0,
    };
    let mut recorder = Recorder::start(limits, "plain", || {}).expect("a new directory");
    recorder.write(vec![Recorded {
        header: Arc::new(header),
        row: Box::new(row),
    }]);
    drop(recorder);
    let mode = |path: &Path| fs::metadata(path).expect("it is there").mode() & 0o7777;
    assert_eq!(mode(&directory), 0o750);
    assert_eq!(mode(&files(&directory).expect("one")[0]), 0o640);
}
