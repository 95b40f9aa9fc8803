//! What a sender does under the datapath beside what it does under the kernel's reno, on the same
//! scripts: [`cc_lab::peer`] plays the other end, segment by segment.
//!
//! Which segments are retransmitted, and in which order relative to the ACKs, is the kernel's
//! business and must not depend on the congestion control. The cwnd does depend on it; the tests
//! assert how. Each test prints what it saw, and ends by asserting that no slot was leaked.
//! docs/tcp-behaviour.md has the results as a table.
//!
//! No assertion depends on the machine's speed. Where the kernel's own timers could come between
//! two steps of a script, the script is played again if the machine was too slow.

mod handshakes;
mod limits;
mod lives;
mod loss;
mod served;
mod stage;

use std::process::ExitCode;

use handshakes::*;
use limits::*;
use lives::*;
use loss::*;

fn main() -> ExitCode {
    let code = cc_lab::run(cc_lab::trials![
        fast_recovery_after_three_sacks,
        fast_recovery_after_three_duplicate_acks,
        limited_transmit,
        tail_loss_probe_finds_a_loss,
        tail_loss_probe_repairs_a_loss,
        reordering_is_not_loss,
        a_spurious_timeout_is_undone,
        a_spurious_fast_retransmission_is_undone,
        timeouts_back_off,
        a_whole_flight_is_lost,
        reneging,
        zero_window,
        keepalive,
        restart_after_idle,
        an_unused_window_is_not_raised,
        congestion_marks,
        an_mtu_probe_arrives,
        an_mtu_probe_is_lost,
        a_path_swallows_large_segments,
        fast_open_client,
        fast_open_client_with_a_stale_cookie,
        fast_open_server,
        syn_cookies,
        ipv6,
        ipv4_mapped_addresses,
        multipath_tcp_falls_back,
        multipath_tcp_between_two_sockets,
        one_socket_connects_twice_and_listens,
        a_hundred_thousand_switches,
    ]);
    served::detach();
    code
}
