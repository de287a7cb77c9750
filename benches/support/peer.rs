//! What a peer took, as its script wrote it to a file: a line for each name, with seconds behind a
//! tab.

use std::collections::HashMap;

/// The seconds by name, from the file that the variable `PEER` names; none without it.
pub(crate) fn times() -> HashMap<String, f64> {
    let Some(path) = std::env::var_os("PEER") else { return HashMap::new() };
    let text = std::fs::read_to_string(path).expect("the file that PEER names");
    let row = |line: &str| {
        let (name, seconds) = line.rsplit_once('\t')?;
        Some((name.to_owned(), seconds.parse().ok()?))
    };
    text.lines().filter_map(row).collect()
}
