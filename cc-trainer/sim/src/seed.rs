//! Seeds derived from seeds, by SplitMix64.
//!
//! G. L. Steele, D. Lea and C. H. Flood, "Fast Splittable Pseudorandom Number Generators"
//! (OOPSLA 2014). The generator adds a constant to its state for every output and
//! scrambles the sum, so that its outputs can be computed in any order and neighbouring
//! seeds give unrelated ones. Runs are repeated bit for bit from their seeds: changing a
//! function here changes every simulated result.

/// The increment of SplitMix64: 2⁶⁴ divided by the golden ratio, made odd.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// Output number `n`, counted from 1, of a SplitMix64 generator seeded with `seed`.
pub fn output(seed: u64, n: u64) -> u64 {
    let mut mixed = seed.wrapping_add(n.wrapping_mul(GAMMA));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A seed derived from a seed and a number, to be folded over several numbers in turn: the first
/// output of a generator seeded with their sum.
///
/// Only a fold with scrambled seeds keeps its inputs apart: `fold(1, 2)` is `fold(2, 1)`.
pub fn fold(seed: u64, number: u64) -> u64 {
    output(seed.wrapping_add(number), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_those_of_the_reference_implementation() {
        // Sebastiano Vigna's splitmix64.c seeded with 1234567.
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        for (n, expected) in (1..).zip(expected) {
            assert_eq!(output(1_234_567, n), expected);
        }
    }

    #[test]
    fn a_fold_is_the_first_output_of_the_sum() {
        assert_eq!(fold(1_234_560, 7), 6_457_827_717_110_365_317);
        assert_eq!(fold(0, u64::MAX), output(u64::MAX, 1));
    }
}
