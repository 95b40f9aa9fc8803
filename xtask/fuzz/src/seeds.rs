//! Well-formed inputs, made by the code that reads them where that can also write them.

use bytemuck::Zeroable;
use cc_core::{
    canary::CanaryBy,
    policy::DEFAULT_POLICY,
    status::{Command, Request},
};
use cc_ebpf::{AckRecord, ClosedRecord, Header, OpenedRecord, WindowRecord};

pub(crate) fn records() -> Vec<Vec<u8>> {
    let mut opened = OpenedRecord::zeroed();
    opened.header = Header::of::<OpenedRecord>(1, 2, 3);
    let mut window = WindowRecord::zeroed();
    window.header = Header::of::<WindowRecord>(1, 2, 3);
    let mut closed = ClosedRecord::zeroed();
    closed.header = Header::of::<ClosedRecord>(1, 2, 3);
    let mut ack = AckRecord::zeroed();
    ack.header = Header::of::<AckRecord>(1, 2, 3);
    vec![
        bytemuck::bytes_of(&opened).to_vec(),
        bytemuck::bytes_of(&window).to_vec(),
        bytemuck::bytes_of(&closed).to_vec(),
        bytemuck::bytes_of(&ack).to_vec(),
    ]
}

pub(crate) fn policies() -> Vec<Vec<u8>> {
    vec![DEFAULT_POLICY.to_vec()]
}

pub(crate) fn scenarios() -> Vec<Vec<u8>> {
    let texts = [
        "[[scenario]]\nname = \"a\"\nrate_mbps = 12\ndelay_ms = 20\n",
        "[[scenario]]\nname = \"b\"\nrate_mbps = 0.5\ndelay_ms = 1.5\nloss = 0.01\n\
         queue = { bdp = 2 }\njitter_ms = 1\naggregation_ms = 4\n\
         policer = { rate_mbps = 1, burst_bytes = 30000 }\n\
         [scenario.reverse]\nrate_mbps = 1\nqueue = { packets = 10 }\n\
         [[scenario.flow]]\nstart_s = 0\n[[scenario.flow]]\nstart_s = 1\nscheme = \"cubic\"\n",
        "[[scenario]]\nname = \"c\"\ndelay_ms = 5\nqueue = { bytes = 30000, drop = \"head\" }\n\
         opportunities = { every_ms = 20, packets = 1 }\n\
         loss = { to_bad = 0.1, to_good = 0.2 }\ndelay_changes = [{ at_s = 1, delay_ms = 9 }]\n",
        "[[scenario]]\nname = \"d\"\ndelay_ms = 5\npoisson = { mbps = 1, seconds = 1 }\n",
        "[[scenario]]\nname = \"e\"\ndelay_ms = 5\ncellular = { mbps = 1, seconds = 1 }\n",
    ];
    texts.map(|text| text.as_bytes().to_vec()).to_vec()
}

pub(crate) fn traces() -> Vec<Vec<u8>> {
    vec![b"1\n1\n3\n100\n".to_vec(), b"0\n12\n\n\n".to_vec()]
}

pub(crate) fn requests() -> Vec<Vec<u8>> {
    let file = || "policy.onnx".into();
    let requests = [
        Request::Status,
        Request::Command(Command::Reload { file: file() }),
        Request::Command(Command::StartCanary {
            file: file(),
            percent: 2.5,
            by: CanaryBy::Path,
        }),
        Request::Command(Command::Promote),
        Request::Command(Command::Withdraw),
    ];
    requests
        .iter()
        .map(|request| serde_json::to_vec(request).expect("a request can be written"))
        .collect()
}
