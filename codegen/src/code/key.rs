//! [`key`]: everything that the code of a kernel depends on, as bytes.
//!
//! Equal keys mean equal code, so a key is the kernel itself and not a hash of it: it is written
//! down field by field, as `Hash` goes through them, with numbers in few bytes. What `Hash` gives
//! says where a list ends and which variant comes next, so that different kernels have different
//! bytes. For a kernel over thousands of tensors that is much less to write and to compare than its
//! debug text. Sizes with names have no numbers that are the same in every process: a kernel that
//! has any is its debug text.

use crate::plan::facts::Answer;
use crate::target::Target;
use std::hash::{Hash, Hasher};
use tracecast_ir::kernel::Kernel;

/// The compiler, the machine, and what the kernel does.
pub(crate) fn key(target: &Target, kernel: &Kernel) -> Vec<u8> {
    let Kernel { name: _, inputs, outputs, when: _, checks: _, arguments, names, form } = kernel;
    let mut key = Written(target.identity.clone().into_bytes());
    if names.is_empty() {
        (inputs, outputs, form).hash(&mut key);
        return key.0;
    }
    let bounds: Vec<_> = names.iter().map(|name| (name.name, name.least, name.most)).collect();
    key.0.extend(format!("{:?}", (bounds, inputs, outputs, arguments, form)).into_bytes());
    key.0
}

/// The key of the code for a class of the sizes of a kernel.
pub(crate) fn key_of_class(key: &[u8], answers: &[Answer]) -> Vec<u8> {
    let mut key = key.to_vec();
    for answer in answers {
        key.extend(format!("; {answer}").into_bytes());
    }
    key
}

/// Writes down what it is given to hash.
struct Written(Vec<u8>);

impl Written {
    /// Seven bits of a number in each byte; the last byte is less than 128.
    fn number(&mut self, mut number: u64) {
        while number >= 128 {
            self.0.push(number as u8 | 128);
            number >>= 7;
        }
        self.0.push(number as u8);
    }
}

impl Hasher for Written {
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
    }

    fn write_u32(&mut self, number: u32) {
        self.number(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.number(number);
    }

    fn write_usize(&mut self, number: usize) {
        self.number(number as u64);
    }

    fn write_i64(&mut self, number: i64) {
        // Small numbers of both signs are small.
        self.number((number << 1 ^ number >> 63) as u64);
    }

    fn write_isize(&mut self, number: isize) {
        self.write_i64(number as i64);
    }

    /// Nothing: what was written is the key.
    fn finish(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(what: impl Hash) -> Vec<u8> {
        let mut to = Written(Vec::new());
        what.hash(&mut to);
        to.0
    }

    #[test]
    fn what_differs_is_written_differently() {
        let lists: [&[&[i64]]; 8] =
            [&[], &[&[]], &[&[], &[]], &[&[1]], &[&[1], &[]], &[&[], &[1]], &[&[1, -1]], &[&[256]]];
        for (i, a) in lists.iter().enumerate() {
            for (j, b) in lists.iter().enumerate() {
                assert_eq!(written(a) == written(b), i == j, "{a:?} and {b:?}");
            }
        }
        let numbers = [0, 1, -1, 63, 64, -64, -65, i64::MAX, i64::MIN, 1 << 40];
        for (i, a) in numbers.iter().enumerate() {
            // Neither is the beginning of another, so that what follows cannot make them equal.
            let others = numbers.iter().enumerate().filter(|(j, _)| *j != i);
            assert!(others.into_iter().all(|(_, b)| !written(b).starts_with(&written(a))), "{a}");
        }
        assert_ne!(written(Some(0usize)), written(None::<usize>));
        assert_eq!(written(300u64), [172, 2]);
    }
}
