//! Random numbers of tests, the same with each run.

/// A small generator of random numbers: splitmix64, behind bytes that are given.
#[derive(Clone, Debug)]
pub(crate) struct Dice {
    state: u64,
    /// The numbers that come first, the next one at the end.
    given: Vec<u8>,
}

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Dice { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678, given: Vec::new() }
    }

    /// Dice that show these bytes, one throw a byte, before they are random: whoever chooses the
    /// bytes chooses what is made of them.
    #[allow(dead_code, reason = "only fuzz targets choose")]
    pub(crate) fn given(bytes: &[u8]) -> Self {
        Dice { given: bytes.iter().rev().copied().collect(), ..Dice::new(0) }
    }

    pub(crate) fn word(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        if let Some(byte) = self.given.pop() {
            return usize::from(byte) % n.max(1);
        }
        (self.word() % n.max(1) as u64) as usize
    }

    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Uniform in -1..1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}
