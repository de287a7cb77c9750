//! [`HostLoan`]: a place for an input or an output of a run in the memory of its tensor, so that
//! large ones are not copied.

use crate::tensor::Tensor;
use std::fmt;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A place whose address changes from run to run: that of a tensor which the run reads, or of one
/// which it makes.
///
/// A device that takes loans ([`Device::takes_loans`](crate::Device::takes_loans)) asks for the
/// address whenever a kernel runs.
#[derive(Default)]
pub struct HostLoan {
    held: Mutex<Held>,
    address: AtomicPtr<u8>,
    len: AtomicUsize,
}

/// What is at the address.
#[derive(Default)]
enum Held {
    #[default]
    Nothing,
    /// Only read: kernels write no place that is an input.
    Input(#[expect(dead_code, reason = "keeps the address valid")] Tensor),
    /// Held by nobody else.
    Output(Tensor),
}

impl HostLoan {
    /// The address of the first byte and the number of bytes; null and 0 outside a run. Like all
    /// memory of tensors it is aligned for elements, not for cache lines. What was lent as an input
    /// must not be written.
    pub fn place(&self) -> (*mut u8, usize) {
        (self.address.load(Ordering::Acquire), self.len.load(Ordering::Acquire))
    }

    /// Lends a tensor to be read.
    pub(crate) fn lend(&self, tensor: &Tensor) {
        let mut held = self.held();
        let bytes = tensor.bytes();
        self.set(bytes.as_ptr().cast_mut(), bytes.len());
        *held = Held::Input(tensor.clone());
    }

    /// Lends a tensor that nobody else holds to be written.
    pub(crate) fn lend_to_write(&self, mut tensor: Tensor) {
        let mut held = self.held();
        if let Some(bytes) = tensor.own_bytes() {
            self.set(bytes.as_mut_ptr(), bytes.len());
        }
        *held = Held::Output(tensor);
    }

    /// Takes back what was lent: the tensor, if it was to be written.
    pub(crate) fn take(&self) -> Option<Tensor> {
        let mut held = self.held();
        self.set(null_mut(), 0);
        match std::mem::take(&mut *held) {
            Held::Output(tensor) => Some(tensor),
            Held::Input(_) | Held::Nothing => None,
        }
    }

    fn set(&self, address: *mut u8, len: usize) {
        self.address.store(address, Ordering::Release);
        self.len.store(len, Ordering::Release);
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for HostLoan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostLoan({} bytes)", self.place().1)
    }
}
