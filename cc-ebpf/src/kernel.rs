//! The offsets of the kernel structure members that the datapath reads and writes.

use bytemuck::{Pod, Zeroable};

/// Stands for the offset of a member that the running kernel does not have.
pub const ABSENT: u32 = u32::MAX;

macro_rules! kernel_layout {
    ($($(#[$attribute:meta])* $field:ident: $structure:literal, $member:literal;)+) => {
        /// Offsets of kernel structure members in bytes, and of bit fields (`_bit`) in bits, filled
        /// in from the running kernel's BTF before the programs are loaded.
        ///
        /// rustc emits no CO-RE relocations. This table lies in the object's `.rodata`, which is
        /// frozen at load, so the verifier knows each offset as a constant and drops the branches
        /// of members that are [`ABSENT`].
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
        pub struct KernelLayout {
            $(
                $(#[$attribute])*
                #[doc = concat!("Offset of `", $structure, ".", $member, "`.")]
                pub $field: u32,
            )+
        }

        impl KernelLayout {
            /// A table in which every member is absent.
            pub const EMPTY: Self = Self { $($field: ABSENT,)+ };

            /// Structure and member path of every entry, in the order of the fields.
            pub const MEMBERS: &[(&str, &str)] = &[$(($structure, $member),)+];

            /// Fills the table: `offset` maps structure and member path to an offset.
            ///
            /// # Errors
            ///
            /// Returns the first error that `offset` returns.
            pub fn resolve<E>(
                mut offset: impl FnMut(&str, &str) -> Result<u32, E>,
            ) -> Result<Self, E> {
                Ok(Self { $($field: offset($structure, $member)?,)+ })
            }
        }
    };
}

kernel_layout! {
    family: "sock_common", "skc_family";
    state: "sock_common", "skc_state";
    local_port: "sock_common", "skc_num";
    remote_port: "sock_common", "skc_dport";
    local_addr: "sock_common", "skc_rcv_saddr";
    remote_addr: "sock_common", "skc_daddr";
    local_addr6: "sock_common", "skc_v6_rcv_saddr";
    remote_addr6: "sock_common", "skc_v6_daddr";
    cookie: "sock_common", "skc_cookie";
    net: "sock_common", "skc_net.net";
    net_inum: "net", "ns.inum";
    slow_start_after_idle: "net", "ipv4.sysctl_tcp_slow_start_after_idle";
    route: "sock", "sk_dst_cache";
    route_device: "dst_entry", "dev";
    device_name: "net_device", "name";
    cgroup: "sock", "sk_cgrp_data.cgroup";
    cgroup_kn: "cgroup", "kn";
    kn_id: "kernfs_node", "id";
    cgroup_css: "cgroup", "self";
    css_parent: "cgroup_subsys_state", "parent";
    css_cgroup: "cgroup_subsys_state", "cgroup";
    pacing_rate: "sock", "sk_pacing_rate";
    max_pacing_rate: "sock", "sk_max_pacing_rate";
    pacing_status: "sock", "sk_pacing_status";
    ca_ops: "inet_connection_sock", "icsk_ca_ops";
    ca_name: "tcp_congestion_ops", "name";
    ca_priv: "inet_connection_sock", "icsk_ca_priv";
    ca_state_bit: "inet_connection_sock", "icsk_ca_state";
    ca_chosen_bit: "inet_connection_sock", "icsk_ca_setsockopt";
    retransmits: "inet_connection_sock", "icsk_retransmits";
    rto: "inet_connection_sock", "icsk_rto";
    tcp_mstamp: "tcp_sock", "tcp_mstamp";
    header_len: "tcp_sock", "tcp_header_len";
    segs_in: "tcp_sock", "segs_in";
    segs_out: "tcp_sock", "segs_out";
    data_segs_out: "tcp_sock", "data_segs_out";
    bytes_received: "tcp_sock", "bytes_received";
    bytes_acked: "tcp_sock", "bytes_acked";
    bytes_sent: "tcp_sock", "bytes_sent";
    bytes_retrans: "tcp_sock", "bytes_retrans";
    total_retrans: "tcp_sock", "total_retrans";
    total_rto: "tcp_sock", "total_rto";
    lsndtime: "tcp_sock", "lsndtime";
    delivered: "tcp_sock", "delivered";
    delivered_ce: "tcp_sock", "delivered_ce";
    lost: "tcp_sock", "lost";
    srtt_us: "tcp_sock", "srtt_us";
    mdev_us: "tcp_sock", "mdev_us";
    /// The best of the filter's three estimates.
    min_rtt: "tcp_sock", "rtt_min.s.v";
    mss_cache: "tcp_sock", "mss_cache";
    packets_out: "tcp_sock", "packets_out";
    sacked_out: "tcp_sock", "sacked_out";
    lost_out: "tcp_sock", "lost_out";
    retrans_out: "tcp_sock", "retrans_out";
    max_packets_out: "tcp_sock", "max_packets_out";
    is_cwnd_limited_bit: "tcp_sock", "is_cwnd_limited";
    snd_cwnd: "tcp_sock", "snd_cwnd";
    snd_cwnd_cnt: "tcp_sock", "snd_cwnd_cnt";
    snd_cwnd_clamp: "tcp_sock", "snd_cwnd_clamp";
    snd_ssthresh: "tcp_sock", "snd_ssthresh";
    prior_cwnd: "tcp_sock", "prior_cwnd";
    snd_una: "tcp_sock", "snd_una";
    snd_nxt: "tcp_sock", "snd_nxt";
    write_seq: "tcp_sock", "write_seq";
    first_tx_mstamp: "tcp_sock", "first_tx_mstamp";
    delivered_mstamp: "tcp_sock", "delivered_mstamp";
    rate_delivered: "tcp_sock", "rate_delivered";
    rate_interval_us: "tcp_sock", "rate_interval_us";
    rack_mstamp: "tcp_sock", "rack.mstamp";
    rack_rtt_us: "tcp_sock", "rack.rtt_us";
    saw_tstamp_bit: "tcp_sock", "rx_opt.saw_tstamp";
    rcv_tsecr: "tcp_sock", "rx_opt.rcv_tsecr";
    skb_cb: "sk_buff", "cb";
    cb_seq: "tcp_skb_cb", "seq";
    cb_end_seq: "tcp_skb_cb", "end_seq";
    cb_ack_seq: "tcp_skb_cb", "ack_seq";
    rs_delivered: "rate_sample", "delivered";
    rs_interval_us: "rate_sample", "interval_us";
    rs_rtt_us: "rate_sample", "rtt_us";
    rs_losses: "rate_sample", "losses";
    rs_acked_sacked: "rate_sample", "acked_sacked";
    rs_is_app_limited: "rate_sample", "is_app_limited";
    /// The register of a function's first argument on x86-64.
    first_argument: "pt_regs", "di";
    /// The register of a function's second argument on x86-64.
    second_argument: "pt_regs", "si";
}

impl KernelLayout {
    /// Members that a kernel may lack: the datapath works without them.
    pub const OPTIONAL: &[&str] = &[
        "total_rto",
        "skc_v6_rcv_saddr",
        "skc_v6_daddr",
        "skc_cookie",
        "skc_net.net",
        "ns.inum",
        "ipv4.sysctl_tcp_slow_start_after_idle",
        "sk_cgrp_data.cgroup",
        "di",
        "si",
    ];

    /// Members that only the observer of other congestion controls needs.
    pub const OBSERVER: &[&str] = &[
        "skc_state",
        "self",
        "parent",
        "cgroup",
        "snd_nxt",
        "first_tx_mstamp",
        "delivered_mstamp",
        "rate_delivered",
        "rate_interval_us",
        "rack.mstamp",
        "rack.rtt_us",
        "rx_opt.saw_tstamp",
        "rx_opt.rcv_tsecr",
        "cb",
        "seq",
        "end_seq",
        "ack_seq",
    ];

    /// Whether the datapath can run on a kernel without the member.
    pub fn may_lack(member: &str) -> bool {
        Self::OPTIONAL.contains(&member) || Self::OBSERVER.contains(&member)
    }
}
