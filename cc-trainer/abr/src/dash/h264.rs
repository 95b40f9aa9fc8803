//! The least of an H.264 encoder (Rec. ITU-T H.264): a picture of one colour, and its repetition.
//!
//! Clauses are those of the edition of 08/2021. A key frame has uncompressed macroblocks (I_PCM,
//! clause 7.3.5), which need neither prediction nor transform; in the frames after it every
//! macroblock is skipped, which repeats the picture.

/// Width and height of the picture, pixels.
pub(super) const SIDE: u16 = 64;

/// The codec as manifests name it (RFC 6381): profile, constraints and level in hexadecimal.
pub(super) const CODEC: &str = "avc1.42C00A";

/// Constrained Baseline, level 1: the least that every decoder has.
pub(super) const PROFILE: [u8; 3] = [66, 0xc0, 10];

/// Pixels along the edge of a macroblock.
const MACROBLOCK: u16 = 16;

/// Number of macroblocks of a picture.
const MACROBLOCKS: u32 = {
    let side = (SIDE / MACROBLOCK) as u32;
    side * side
};

/// Bits of `frame_num`, the number of a frame since the key frame.
const FRAME_NUM_BITS: u32 = 4;

/// Headers of the units: their importance and type (clause 7.4.1).
mod unit {
    pub(super) const PICTURE: u8 = 0x41;
    pub(super) const KEY_PICTURE: u8 = 0x65;
    pub(super) const SEQUENCE_PARAMETERS: u8 = 0x67;
    pub(super) const PICTURE_PARAMETERS: u8 = 0x68;
}

/// The sequence parameter set (clause 7.3.2.1.1).
pub(super) fn sequence_parameters() -> Vec<u8> {
    let mut bits = Bits::default();
    for byte in PROFILE {
        bits.put(8, byte.into());
    }
    bits.golomb(0); // seq_parameter_set_id
    bits.golomb(FRAME_NUM_BITS - 4); // log2_max_frame_num_minus4
    bits.golomb(2); // pic_order_cnt_type: frames are shown in the order of the stream
    bits.golomb(1); // max_num_ref_frames
    bits.put(1, 0); // gaps_in_frame_num_value_allowed_flag
    for _ in 0..2 {
        bits.golomb(u32::from(SIDE / MACROBLOCK) - 1); // width and height in macroblocks, minus 1
    }
    bits.put(1, 1); // frame_mbs_only_flag
    bits.put(1, 1); // direct_8x8_inference_flag
    bits.put(1, 0); // frame_cropping_flag
    bits.put(1, 0); // vui_parameters_present_flag
    bits.unit(unit::SEQUENCE_PARAMETERS)
}

/// The picture parameter set (clause 7.3.2.2).
pub(super) fn picture_parameters() -> Vec<u8> {
    let mut bits = Bits::default();
    bits.golomb(0); // pic_parameter_set_id
    bits.golomb(0); // seq_parameter_set_id
    bits.put(1, 0); // entropy_coding_mode_flag
    bits.put(1, 0); // bottom_field_pic_order_in_frame_present_flag
    bits.golomb(0); // num_slice_groups_minus1
    bits.golomb(0); // num_ref_idx_l0_default_active_minus1
    bits.golomb(0); // num_ref_idx_l1_default_active_minus1
    bits.put(1, 0); // weighted_pred_flag
    bits.put(2, 0); // weighted_bipred_idc
    bits.golomb(0); // pic_init_qp_minus26
    bits.golomb(0); // pic_init_qs_minus26
    bits.golomb(0); // chroma_qp_index_offset
    bits.put(1, 0); // deblocking_filter_control_present_flag
    bits.put(1, 0); // constrained_intra_pred_flag
    bits.put(1, 0); // redundant_pic_cnt_present_flag
    bits.unit(unit::PICTURE_PARAMETERS)
}

/// A key frame of one colour (luma, blue and red difference). Two successive key frames must differ
/// in `id`.
pub(super) fn key_frame([luma, blue, red]: [u8; 3], id: u32) -> Vec<u8> {
    let mut bits = Bits::default();
    bits.golomb(0); // first_mb_in_slice
    bits.golomb(7); // slice_type: I, as are all slices of the picture
    bits.golomb(0); // pic_parameter_set_id
    bits.put(FRAME_NUM_BITS, 0); // frame_num
    bits.golomb(id); // idr_pic_id
    bits.put(1, 0); // no_output_of_prior_pics_flag
    bits.put(1, 0); // long_term_reference_flag
    bits.golomb(0); // slice_qp_delta
    for _ in 0..MACROBLOCKS {
        bits.golomb(25); // mb_type: I_PCM
        bits.align();
        for (samples, value) in [(256, luma), (64, blue), (64, red)] {
            for _ in 0..samples {
                bits.put(8, value.into());
            }
        }
    }
    bits.unit(unit::KEY_PICTURE)
}

/// The frame that is the `number`th after a key frame, from 1: the same picture again.
pub(super) fn repeated_frame(number: u32) -> Vec<u8> {
    let mut bits = Bits::default();
    bits.golomb(0); // first_mb_in_slice
    bits.golomb(5); // slice_type: P, as are all slices of the picture
    bits.golomb(0); // pic_parameter_set_id
    bits.put(FRAME_NUM_BITS, number % (1 << FRAME_NUM_BITS)); // frame_num
    bits.put(1, 0); // num_ref_idx_active_override_flag
    bits.put(1, 0); // ref_pic_list_modification_flag_l0
    bits.put(1, 0); // adaptive_ref_pic_marking_mode_flag
    bits.golomb(0); // slice_qp_delta
    bits.golomb(MACROBLOCKS); // mb_skip_run
    bits.unit(unit::PICTURE)
}

/// A string of bits, the most significant one of each byte first.
#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    /// Number of bits of the last byte that are still free.
    free: u32,
}

impl Bits {
    /// Appends the last `count` bits of `value`.
    fn put(&mut self, count: u32, value: u32) {
        for place in (0..count).rev() {
            if self.free == 0 {
                self.bytes.push(0);
                self.free = 8;
            }
            self.free -= 1;
            if let Some(last) = self.bytes.last_mut() {
                *last |= ((value >> place & 1) as u8) << self.free;
            }
        }
    }

    /// Appends a number as an Exp-Golomb code (clause 9.1). Of the signed numbers only 0 occurs,
    /// which has the same code.
    fn golomb(&mut self, value: u32) {
        let length = (value + 1).ilog2();
        self.put(length, 0);
        self.put(length + 1, value + 1);
    }

    /// Fills the last byte with zeros.
    fn align(&mut self) {
        self.free = 0;
    }

    /// The unit with this header and these bits, without the start code (clause 7.3.1). Two zeros
    /// are followed by a 3 where the decoder would see a start code.
    fn unit(mut self, header: u8) -> Vec<u8> {
        self.put(1, 1);
        self.align();
        let mut unit = vec![header];
        for byte in self.bytes {
            if byte <= 3 && unit.ends_with(&[0, 0]) {
                unit.push(3);
            }
            unit.push(byte);
        }
        unit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_codes_of_the_standard() {
        // Table 9-2.
        for (value, code) in [
            (0, "1"),
            (1, "010"),
            (2, "011"),
            (3, "00100"),
            (25, "000011010"),
        ] {
            let mut bits = Bits::default();
            bits.golomb(value);
            let text: String = bits
                .bytes
                .iter()
                .map(|byte| format!("{byte:08b}"))
                .collect();
            assert_eq!(text.trim_end_matches('0'), code.trim_end_matches('0'));
            assert_eq!(text.len() - bits.free as usize, code.len());
        }
    }

    #[test]
    fn no_unit_contains_a_start_code() {
        let mut bits = Bits::default();
        for byte in [0, 0, 0, 0, 0, 1, 0, 0, 4] {
            bits.put(8, byte);
        }
        let unit = bits.unit(0x65);
        assert_eq!(unit, [0x65, 0, 0, 3, 0, 0, 3, 0, 1, 0, 0, 4, 0x80]);
        for unit in [
            sequence_parameters(),
            picture_parameters(),
            repeated_frame(16),
        ] {
            assert!(
                unit.windows(3)
                    .all(|three| three[..2] != [0, 0] || three[2] >= 3)
            );
        }
    }

    #[test]
    fn a_key_frame_has_all_samples_and_a_repetition_none() {
        let frame = key_frame([81, 82, 83], 0);
        let count = |value: u8| frame.iter().filter(|byte| **byte == value).count();
        assert_eq!(
            [count(81), count(82), count(83)],
            [64 * 64, 32 * 32, 32 * 32]
        );
        assert!(repeated_frame(3).len() < 8);
    }
}
