//! temp
use cc_agent::kernel::*;
fn main() {
    let o = Options { name: "rlcc".into(), slots: 64, window_ns: 100_000_000, heartbeat_limit_ns: 1_000_000_000, min_rtt_window_ns: 10_000_000_000, cwnd_min: 2, cwnd_max: 2000, startup: cc_ebpf::Startup::SlowStart, pacing_gain: None, ack_filter: cc_ebpf::AckFilter::All };
    let mut d = match Datapath::attach(&o) { Ok(d) => d, Err(e) => { println!("{e}"); std::process::exit(1) } };
    println!("attached, adopted {}", d.adopted());
    for i in 0..60 {
        d.beat(clock::now_ns());
        std::thread::sleep(std::time::Duration::from_millis(100));
        for b in d.records().drain(1000) {
            match cc_ebpf::Record::decode(&b) { Ok(cc_ebpf::Record::Window(w)) => { println!("w{} acks {} cwnd {} mode {} rtt {} thr {} delay {}", w.index, w.acks, w.cwnd, w.mode, w.features.mean(2, w.acks), w.features.mean(17, w.acks), w.features.mean(5, w.acks));
               d.publish(w.header.slot, cc_ebpf::Decision{generation: w.header.generation, window: w.index, cwnd: 20 + (i % 30)});
            }
              Ok(r) => println!("{r:?}"), Err(e) => println!("{e}") }
        }
        let acks = d.acks().drain(100000).len(); if acks > 0 { println!("{acks} acks"); }
    }
    println!("{:?}", d.counters());
}
