//! Losses, reordering, and retransmissions that were not necessary.

use cc_lab::{
    TcpInfo,
    peer::{Ack, Host, Options},
};

use crate::stage::{Both, DECISION, Played, Stage, Talk, play, play_paced};

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
    assert_eq!((first.fresh(), first.again()), (vec![11], vec![]));
    assert_eq!((second.fresh(), second.again()), (vec![12], vec![]));
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

/// Two duplicate ACKs: each lets a new segment out (RFC 3042), and nothing is retransmitted.
pub(crate) fn limited_transmit() {
    let both = play("limited transmit", Host::new, |stage| {
        let mut talk = stage.connect(Options {
            sack: false,
            ..Options::default()
        });
        talk.write(20);
        talk.expect(1..=10);
        talk.rtt();
        let first = talk.reply(Ack::upto(0));
        assert_eq!((first.fresh(), first.again()), (vec![11], vec![]));
        let second = talk.reply(Ack::upto(0));
        assert_eq!((second.fresh(), second.again()), (vec![12], vec![]));
        assert_eq!(talk.info().ca_state, TcpInfo::CA_DISORDER);
        talk.rtt();
        talk.reply(Ack::upto(12));
        assert_eq!(talk.info().ca_state, TcpInfo::CA_OPEN);
        talk.deliver(20);
        assert_eq!(talk.info().total_retrans, 0);
        Ok(())
    });
    assert!(both.rlcc.cwnds().iter().all(|&cwnd| cwnd == DECISION));
    assert!(both.reno.last_cwnd() >= DECISION);
}

/// The last two of four segments are lost: the probe repeats the last one (RFC 8985), and its SACK
/// shows the loss of the one before, without a timeout.
pub(crate) fn tail_loss_probe_finds_a_loss() {
    let host = || Host::new().with_tail_loss_probe();
    let both = play("tail-loss probe, another segment is lost", host, |stage| {
        let mut talk = stage.connect(Options::default());
        talk.write(4);
        talk.expect(1..=4);
        talk.rtt();
        talk.reply(Ack::upto(2));
        assert_eq!(talk.wait().again(), [4]);
        assert_eq!(talk.info().ca_state, TcpInfo::CA_OPEN);
        talk.rtt();
        assert_eq!(talk.reply(Ack::upto(2).sack(4..=4)).again(), [3]);
        assert_eq!(talk.info().ca_state, TcpInfo::CA_RECOVERY);
        talk.rtt();
        talk.reply(Ack::upto(4));
        talk.deliver(4);
        talk.info().assert_repairs(0, 2);
        Ok(())
    });
    assert_the_decision_outlasts_the_loss(&both);
}

/// The probe itself repairs the loss: the ACK of what was sent after it says so, and reno halves
/// its cwnd for a loss that no one else has seen.
pub(crate) fn tail_loss_probe_repairs_a_loss() {
    let host = || Host::new().with_tail_loss_probe();
    let both = play("tail-loss probe, nothing else is lost", host, |stage| {
        let mut talk = stage.connect(Options::default());
        talk.write(4);
        talk.expect(1..=4);
        talk.rtt();
        talk.reply(Ack::upto(2));
        assert_eq!(talk.wait().again(), [4]);
        talk.write(2);
        talk.expect(5..=6);
        talk.rtt();
        assert_eq!(talk.reply(Ack::upto(6)).again(), [0; 0]);
        talk.deliver(6);
        talk.info().assert_repairs(0, 1);
        Ok(())
    });
    assert_the_decision_outlasts_the_loss(&both);
}

/// RACK (RFC 8985): a segment that comes late within the reordering window, a quarter of the RTT,
/// is not retransmitted; one that does not come is, when the window has passed.
pub(crate) fn reordering_is_not_loss() {
    let both = play("reordering (RACK)", Host::new, |stage| {
        let mut talk = stage.connect(Options::default());
        talk.write(10);
        talk.expect(1..=10);
        talk.rtt();
        let [early, late, hole] = stage.quickly(|| {
            [
                Ack::upto(0).sack(2..=2),
                Ack::upto(2),
                Ack::upto(2).sack(4..=4),
            ]
            .map(|ack| talk.reply(ack))
        })?;
        for sent in [early, late, hole] {
            assert_eq!(sent.again(), [0; 0]);
        }
        assert_eq!(talk.info().reord_seen, 1);
        assert_eq!(talk.wait().again(), [3]);
        assert_eq!(talk.info().ca_state, TcpInfo::CA_RECOVERY);
        talk.rtt();
        talk.reply(Ack::upto(10));
        talk.deliver(10);
        talk.info().assert_repairs(0, 1);
        Ok(())
    });
    assert_the_decision_outlasts_the_loss(&both);
}

/// The ACKs were late, nothing was lost: what acknowledges a segment that was sent only once proves
/// it (F-RTO, RFC 5682), and the cwnd is as before the timeout.
pub(crate) fn a_spurious_timeout_is_undone() {
    let host = || Host::new().with_timeout(600);
    let both = play("spurious timeout (F-RTO)", host, |stage| {
        let mut talk = stage.connect(Options::default());
        talk.write(10);
        talk.expect(1..=10);
        assert_eq!(talk.wait().again(), [1]);
        let info = talk.info();
        assert_eq!((info.ca_state, info.snd_cwnd), (TcpInfo::CA_LOSS, 1));
        assert_eq!(talk.reply(Ack::upto(2)).again(), [0; 0]);
        assert_eq!(talk.info().ca_state, TcpInfo::CA_OPEN);
        talk.deliver(10);
        talk.info().assert_repairs(1, 1);
        Ok(())
    });
    // Reno is back at its cwnd, and in slow start.
    assert_eq!(both.reno.cwnd(2), DECISION + 2);
    assert_eq!(both.rlcc.cwnd(2), DECISION);
    assert_eq!(both.rlcc.last_cwnd(), DECISION);
}

/// A fast retransmission was not necessary: the receiver reports the duplicate (RFC 2883), and the
/// cwnd is as before.
pub(crate) fn a_spurious_fast_retransmission_is_undone() {
    let both = play("spurious fast retransmission (DSACK)", Host::new, |stage| {
        let mut talk = stage.connect(Options::default());
        talk.write(12);
        talk.expect(1..=10);
        talk.rtt();
        let third = stage.quickly(|| {
            talk.reply(Ack::upto(0).sack(2..=2));
            talk.reply(Ack::upto(0).sack(2..=3));
            talk.reply(Ack::upto(0).sack(2..=4))
        })?;
        assert_eq!(third.again(), [1]);
        talk.rtt();
        assert_eq!(talk.reply(Ack::upto(12).sack(1..=1)).again(), [0; 0]);
        assert_eq!(talk.info().ca_state, TcpInfo::CA_OPEN);
        talk.deliver(12);
        assert_eq!(talk.info().dsack_dups, 1);
        Ok(())
    });
    assert!(both.reno.last_cwnd() >= DECISION);
    assert_eq!(both.rlcc.last_cwnd(), DECISION);
}

/// Nothing arrives: the first segment is sent again and again, each time after twice the time.
pub(crate) fn timeouts_back_off() {
    let host = || Host::new().with_timeout(200);
    let both = play("timeouts back off", host, |stage| {
        let mut talk = stage.connect(Options::default());
        talk.write(2);
        talk.expect(1..=2);
        let mut rto = talk.info().rto;
        for backoff in 1..=3 {
            assert_eq!(talk.wait().again(), [1]);
            let info = talk.info();
            assert_eq!((info.backoff, info.rto), (backoff, 2 * rto));
            rto = info.rto;
        }
        // Only the retransmission has arrived: slow start repairs the rest.
        assert_eq!(talk.reply(Ack::upto(1)).again(), [2]);
        talk.reply(Ack::upto(2));
        talk.write(20);
        talk.deliver(22);
        // A segment that was sent once has measured the RTT (Karn's algorithm, RFC 6298).
        assert_eq!(talk.info().backoff, 0);
        talk.info().assert_repairs(3, 4);
        Ok(())
    });
    assert_eq!(both.rlcc.cwnds()[1..], both.reno.cwnds()[1..]);
    assert_the_decision_outlasts_the_loss(&both);
}

/// A flight of ten is lost: after the timeout two new segments ask whether it really was (F-RTO,
/// RFC 5682), and their SACKs say so. Slow start then repeats the rest.
pub(crate) fn a_whole_flight_is_lost() {
    let host = || Host::new().with_timeout(600);
    // Under the datapath each selectively acknowledged segment raises the cwnd in slow start, under
    // reno only those that move the acknowledgement.
    let both = play_paced("a whole flight is lost", host, |stage| {
        let mut talk = stage.connect(Options::default());
        talk.write(12);
        talk.expect(1..=10);
        assert_eq!(talk.wait().again(), [1]);
        talk.rtt();
        let sent = talk.reply(Ack::upto(1));
        assert_eq!((sent.fresh(), sent.again()), (vec![11, 12], vec![]));
        talk.rtt();
        let mut again = Vec::new();
        for ack in [
            Ack::upto(1).sack(11..=11),
            Ack::upto(1).sack(11..=12),
            Ack::upto(2).sack(11..=12),
            Ack::upto(3).sack(11..=12),
            Ack::upto(5).sack(11..=12),
        ] {
            again.extend(talk.reply(ack).again());
            talk.rtt();
        }
        assert_eq!(again, [2, 3, 4, 5, 6, 7, 8, 9, 10]);
        assert_eq!(talk.info().ca_state, TcpInfo::CA_LOSS);
        talk.deliver(12);
        assert_eq!(talk.info().ca_state, TcpInfo::CA_OPEN);
        talk.info().assert_repairs(1, 10);
        Ok(())
    });
    assert!(both.rlcc.cwnds()[1..].iter().all(|&cwnd| cwnd < DECISION));
    assert_the_decision_outlasts_the_loss(&both);
}

/// The peer forgets segments that it has acknowledged selectively: the sender forgets them too, and
/// sends them again.
pub(crate) fn reneging() {
    let both = play("SACK reneging", Host::new, |stage| {
        let mut talk = stage.connect(Options::default());
        talk.write(10);
        talk.expect(1..=10);
        talk.rtt();
        let third = stage.quickly(|| {
            talk.reply(Ack::upto(0).sack(2..=2));
            talk.reply(Ack::upto(0).sack(2..=3));
            talk.reply(Ack::upto(0).sack(2..=4))
        })?;
        assert_eq!(third.again(), [1]);
        talk.rtt();
        // Segments 2 to 4 are not acknowledged any more.
        talk.reply(Ack::upto(1));
        assert_eq!(talk.wait().again(), [2]);
        assert_eq!(talk.info().ca_state, TcpInfo::CA_LOSS);
        talk.rtt();
        let sent = talk.reply(Ack::upto(2));
        assert_eq!(sent.again()[..2], [3, 4]);
        talk.deliver(10);
        Ok(())
    });
    assert!(both.rlcc.cwnds().iter().all(|&cwnd| cwnd <= DECISION));
}
