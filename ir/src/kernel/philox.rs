//! Random bits as a pure function of where they are used: Philox-4x32-10.
//!
//! The generator of Salmon, Moraes, Dror and Shaw ("Parallel random numbers: as easy as 1, 2,
//! 3", 2011) maps a counter of four words and a key of two to four random words. Nothing is
//! carried from one draw to the next, so any element can be drawn anywhere, in any order, by
//! any number of threads.

/// What the first and third word of a counter are multiplied by in a round.
pub const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];

/// Four random words for a counter and a key.
#[inline(always)]
pub fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let (mut counter, mut key) = (counter, key);
    for _ in 0..ROUNDS {
        counter = round(counter, key);
        key = next_key(key);
    }
    counter
}

/// How often a counter is put through [`round`].
pub const ROUNDS: usize = 10;

/// One round: two wide products, crossed and mixed with the key.
#[inline(always)]
pub fn round(c: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let p0 = u64::from(MULTIPLIERS[0]) * u64::from(c[0]);
    let p1 = u64::from(MULTIPLIERS[1]) * u64::from(c[2]);
    [(p1 >> 32) as u32 ^ c[1] ^ key[0], p1 as u32, (p0 >> 32) as u32 ^ c[3] ^ key[1], p0 as u32]
}

/// The key of the next round.
#[inline(always)]
pub fn next_key(key: [u32; 2]) -> [u32; 2] {
    [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])]
}

/// The words of elements `4 * quad` to `4 * quad + 3` of a stream.
///
/// The counter is the quad's two halves (low first), the low half of `step`, and the stream; the
/// key is its two halves.
#[inline(always)]
pub fn random_quad(key: i64, step: i64, stream: u32, quad: u64) -> [u32; 4] {
    philox(
        [quad as u32, (quad >> 32) as u32, step as u32, stream],
        [key as u32, (key >> 32) as u32],
    )
}

/// The random word of one element of a stream: word `element % 4` of the element's quad.
#[inline(always)]
pub fn random_bits(key: i64, step: i64, stream: u32, element: u64) -> u32 {
    random_quad(key, step, stream, element / 4)[(element % 4) as usize]
}

/// A number from 0 up to but not including 1: the high 24 bits as a fraction.
#[inline(always)]
pub fn uniform_f32(bits: u32) -> f32 {
    (bits >> 8) as f32 * (1.0 / 16_777_216.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors published with the Random123 library.
    #[test]
    fn known_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn elements_are_the_words_of_their_quad() {
        let (key, step, stream) = (-7, 1 << 40 | 3, 9);
        for element in [0, 1, 2, 3, 4, 1 << 34 | 5, u64::MAX] {
            let quad = element / 4;
            let want = philox([quad as u32, (quad >> 32) as u32, 3, 9], [(-7i32) as u32, u32::MAX]);
            assert_eq!(random_bits(key, step, stream, element), want[element as usize % 4]);
        }
    }

    #[test]
    fn uniform_stays_below_one() {
        assert_eq!(
            (uniform_f32(0), uniform_f32(255), uniform_f32(256)),
            (0.0, 0.0, 2f32.powi(-24))
        );
        assert!(uniform_f32(u32::MAX) < 1.0);
        let mean = (0..4096).map(|e| f64::from(uniform_f32(random_bits(1, 2, 3, e)))).sum::<f64>()
            / 4096.0;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
    }
}
