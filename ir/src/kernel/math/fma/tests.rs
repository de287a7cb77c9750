//! The emulated fused multiply-add has the bits of the instruction, but for those of a NaN.

use super::{emulated_fma, fma};

/// Compares with the instruction, on a CPU that has it: the fallback of `mul_add` rounds some
/// subnormal results twice.
#[expect(clippy::disallowed_methods, reason = "the instruction, which it finds")]
fn compare(a: f32, b: f32, c: f32) {
    if !is_x86_feature_detected!("fma") {
        return;
    }
    let (found, want) = (emulated_fma(a, b, c), a.mul_add(b, c));
    let same = found.to_bits() == want.to_bits() || found.is_nan() && want.is_nan();
    assert!(same, "{a:e} * {b:e} + {c:e}: {found:e}, not {want:e}");
}

/// Sums that f64 rounds to the middle between two f32: usual, subnormal and the largest ones.
#[test]
fn inexact_sums_near_a_middle() {
    let power = |exponent| 2f32.powi(exponent);
    let unit = f32::EPSILON;
    for (c, [a, b]) in [
        (1.0 + unit, [-12, -12]),
        (power(-126) + power(-149), [-75, -75]),
        (power(-127) + power(-149), [-75, -75]),
        (f32::MAX, [52, 51]),
    ] {
        let (a, b) = ((1.0 - unit) * power(a), (1.0 + unit) * power(b));
        assert_eq!(emulated_fma(a, b, c), c);
        assert_eq!(emulated_fma(-a, b, -c), -c);
        compare(-a, b, c);
    }
    // The product is in the middle, 2^24 + 1; the addend is far below.
    for (c, want) in [(0.0, 16_777_216.0), (1e-40, 16_777_218.0), (-1e-12, 16_777_216.0)] {
        assert_eq!([emulated_fma(257.0, 65281.0, c), fma(257.0, 65281.0, c)], [want; 2]);
    }
}

#[test]
fn extremes() {
    let least = f32::from_bits(1);
    let sizes = [0.0, least, f32::MIN_POSITIVE, 1e-19, 0.5, 1.0, 1e19, f32::MAX, f32::INFINITY];
    let all = sizes.into_iter().flat_map(|x| [x, -x, x.next_down(), -x.next_down()]);
    let all: Vec<f32> = all.chain([f32::NAN]).collect();
    for (a, b) in all.iter().flat_map(|a| all.iter().map(move |b| (a, b))) {
        all.iter().for_each(|c| compare(*a, *b, *c));
    }
}

/// Random bits; then sums that are near middles, cancel or leave the range.
#[test]
fn random_numbers() {
    let mut state = 1u64;
    let mut random = move |below: i32| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (((state >> 32) * below as u64) >> 32) as i32
    };
    for _ in 0..1_000_000 {
        let [a, b, c] = [(); 3].map(|()| random(1 << 16) << 16 | random(1 << 16));
        let [a, b, c] = [a, b, c].map(|bits| f32::from_bits(bits as u32));
        compare(a, b, c);
    }
    let few = 1 << 3;
    for _ in 0..4_000_000 {
        let exponent = [random(256), random(few), 255 - random(few), 127][random(4) as usize];
        // Half of a unit in the last place of the addend, or any distance.
        let distance = [random(few) - 28, random(128) - 64][random(2) as usize];
        let both = exponent.max(1) + distance + 127;
        let first = (both / 2 + random(few)).clamp(0, 254);
        let [a, b, c] = [first, (both - first).clamp(0, 254), exponent].map(|exponent| {
            let any = random(1 << 23);
            let ends = [any, any & 0xfff << 11, random(few), (1 << 23) - 1 - random(few)];
            let bits = random(2) << 31 | exponent << 23 | ends[random(4) as usize];
            f32::from_bits(bits as u32)
        });
        compare(a, b, c);
        compare(a, b, -(a * b));
    }
}
