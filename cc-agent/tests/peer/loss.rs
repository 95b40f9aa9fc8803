//! Losses, reordering, and retransmissions that were not necessary.

use cc_lab::{
    TcpInfo,
    peer::{Ack, Host, Options},
};

use crate::stage::{Both, DECISION, Played, Stage, Talk, play};

/// Asserts that the decision was never exceeded and is in force at the end, whatever was lost, and
/// that reno ended below it.
fn assert_the_decision_outlasts_the_loss(both: &Both) {
    assert!(both.rlcc.cwnds().iter().all(|&cwnd| cwnd <= DECISION));
    assert_eq!(both.rlcc.last_cwnd(), DECISION);
    assert!(both.reno.last_cwnd() < DECISION);
}

pub(crate) fn fast_recovery_after_three_sacks() {
    let both = play("fast recovery (SACK)", Host::new, |stage| {
        fast_recovery(&mut stage.connect(Options::default()), stage, true)
    });
    assert_the_decision_outlasts_the_loss(&both);
}

pub(crate) fn fast_recovery_after_three_duplicate_acks() {
    let both = play("fast recovery (duplicate ACKs)", Host::new, |stage| {
        let options = Options {
            sack: false,
            ..Options::default()
        };
        fast_recovery(&mut stage.connect(options), stage, false)
    });
    assert_the_decision_outlasts_the_loss(&both);
}

/// The first of ten segments is lost: the third duplicate ACK retransmits it, and nothing else is.
pub(crate) fn fast_recovery(talk: &mut Talk<'_>, stage: &Stage<'_>, sack: bool) -> Played {
    let duplicate = |count: u32| {
        let ack = Ack::upto(0);
        if sack { ack.sack(2..=count + 1) } else { ack }
    };
    talk.write(20);
    talk.expect(1..=10);
    talk.rtt();
    let [first, second, third] =
        stage.quickly(|| [1, 2, 3].map(|count| talk.reply(duplicate(count))))?;
    assert_eq!((first.new(), first.again()), (vec![11], vec![]));
    assert_eq!((second.new(), second.again()), (vec![12], vec![]));
    assert_eq!(third.again(), [1]);
    assert_eq!(talk.info().ca_state, TcpInfo::CA_RECOVERY);
    talk.rtt();
    // The retransmission arrived, and so had everything up to the third duplicate ACK.
    assert_eq!(talk.reply(Ack::upto(12)).again(), [0; 0]);
    talk.deliver(20);
    assert_eq!(talk.info().ca_state, TcpInfo::CA_OPEN);
    assert_eq!(talk.info().total_retrans, 1);
    Ok(())
}
