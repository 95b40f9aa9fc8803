//! What a policy's process writes and sends to the agent ([`cc_cage::hostile`]).

use cc_cage::hostile::honest_report;

/// Sizes of a policy, then steps: a batch that is asked, answered and polled; answers of a single
/// action with its probabilities, written as words; a message of no kind.
pub(crate) fn batches() -> Vec<Vec<u8>> {
    const ASK: u8 = 0;
    const WRITE: u8 = 1;
    const ANSWER: u8 = 2;
    const SAY: u8 = 3;
    const SEND: u8 = 4;
    const POLL: u8 = 5;
    let exchange = [5, 3, 2, POLL, ASK, ANSWER, SAY, 1, 0, POLL];
    let twice = [&exchange[..], &exchange[4..]].concat();
    // 2,048 words hold 16 rows of 11 words of queries and as many of 11 words of answers.
    let answers = 16u16 * 11;
    let [low, high] = answers.to_le_bytes();
    let words = [
        1,
        2,
        0.5f32.to_bits(),
        3,
        0,
        0.5f32.to_bits(),
        0,
        0,
        0,
        0,
        0,
    ];
    let words = words.map(u32::to_le_bytes);
    let action = [
        &[4, 3, 2, ASK, WRITE, low, high, 11][..],
        words.as_flattened(),
        &[SAY, 1, 0, POLL],
    ];
    let garbage = [&[0, 0, 0, ASK, SEND, 16][..], &[7; 16], &[POLL]];
    vec![twice, action.concat(), garbage.concat()]
}

/// What honest processes report.
pub(crate) fn reports() -> Vec<Vec<u8>> {
    [false, true]
        .map(|has_file| [&[u8::from(has_file)][..], &honest_report(has_file)].concat())
        .to_vec()
}
