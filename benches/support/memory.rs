//! The resident memory of this process, in kB, as Linux reports it.

/// Forgets the peak of the resident memory so far; what the process holds now. `None` where the
/// system does not report it.
pub(crate) fn reset_peak() -> Option<u64> {
    std::fs::write("/proc/self/clear_refs", "5").ok()?;
    kb("VmRSS")
}

/// The peak since [`reset_peak`] less `base`.
pub(crate) fn peak_above(base: u64) -> Option<u64> {
    Some(kb("VmHWM")?.saturating_sub(base))
}

fn kb(field: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with(field))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
