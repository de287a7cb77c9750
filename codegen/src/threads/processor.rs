//! On which processor a thread runs.
//!
//! Linux puts a thread that is woken onto the waker's processor if no other is idle, and takes a
//! virtual processor whose host has put it aside for busy. Both threads then share one for 10 to 70
//! ms, until the load is balanced; so who gets up there goes away.

/// The processor that the thread runs on; `usize::MAX` if that is not known.
#[cfg(target_os = "linux")]
pub(super) fn current() -> usize {
    // SAFETY: the function takes nothing and only gives a number, -1 where there is none.
    let number = unsafe { libc::sched_getcpu() };
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Goes to another processor if the thread runs on that one and may run on another. It may run
/// where it could before.
#[cfg(target_os = "linux")]
pub(super) fn leave(processor: usize) {
    if processor >= libc::CPU_SETSIZE as usize || processor != current() {
        return;
    }
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: a set of processors is an array of numbers, of which none is invalid.
    let mut allowed: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: there is room for as many bytes as is said.
    let known = unsafe { libc::sched_getaffinity(0, size, &raw mut allowed) } == 0;
    let mut others = allowed;
    // SAFETY: the set has room for that number.
    unsafe { libc::CPU_CLR(processor, &mut others) };
    // SAFETY: only reads the set.
    if !known || unsafe { libc::CPU_COUNT(&others) } == 0 {
        return;
    }
    for set in [&others, &allowed] {
        // SAFETY: reads as many bytes as the set has. Who may not move stays.
        unsafe { libc::sched_setaffinity(0, size, set) };
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn current() -> usize {
    usize::MAX
}

#[cfg(not(target_os = "linux"))]
pub(super) fn leave(_: usize) {}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    #[test]
    fn a_thread_leaves_a_processor_and_may_come_back() {
        let allowed = || std::thread::available_parallelism().unwrap().get();
        let before = allowed();
        let here = current();
        leave(here);
        assert!(allowed() == before);
        leave(usize::MAX);
        leave(5000);
        assert!(here != usize::MAX && allowed() == before);
    }
}
