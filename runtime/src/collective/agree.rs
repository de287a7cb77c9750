//! What ranks have to agree on before they begin, and which of them does not.

use super::{Collective, Label, Transfer};
use crate::error::{Error, Result};

/// The texts of all ranks, in their order.
///
/// # Errors
/// Those of the exchange.
pub fn gather_texts(ranks: &dyn Collective, label: Label, text: &str) -> Result<Vec<String>> {
    let exchange = |bucket: u64, data: Vec<u8>| {
        let label = Label { bucket, ..label };
        Ok::<_, Error>(ranks.wait(ranks.start(Transfer::Gather, label, data)?)?.data)
    };
    let lengths = exchange(label.bucket, (text.len() as u64).to_le_bytes().to_vec())?;
    let lengths: Vec<usize> =
        lengths.as_chunks::<8>().0.iter().map(|n| u64::from_le_bytes(*n) as usize).collect();
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let mut own = text.as_bytes().to_vec();
    own.resize(longest, 0);
    let all = exchange(label.bucket + 1, own)?;
    let text = |(rank, len): (usize, &usize)| {
        let from = rank * longest;
        String::from_utf8_lossy(&all[from..from + len]).into_owned()
    };
    Ok(lengths.iter().enumerate().map(text).collect())
}

/// Fails on every rank unless all ranks say the same of everything: `facts` are what it is about
/// and what this rank has of it, in an order that is the same everywhere.
///
/// # Errors
/// [`Error::Parallel`] with the first fact that differs, and what two ranks say; those of the
/// exchange.
pub fn agree(ranks: &dyn Collective, label: Label, facts: &[(String, String)]) -> Result<()> {
    let line = |text: &str| text.replace(['\n', '\t'], " ");
    let own: Vec<String> =
        facts.iter().map(|(what, value)| format!("{}\t{}", line(what), line(value))).collect();
    let all = gather_texts(ranks, label, &own.join("\n"))?;
    let Some(first) = all.first() else { return Ok(()) };
    for (rank, other) in all.iter().enumerate().skip(1) {
        if other == first {
            continue;
        }
        let (mut a, mut b) = (first.lines(), other.lines());
        loop {
            let (here, there) = (a.next(), b.next());
            if here == there && here.is_some() {
                continue;
            }
            let shown = |line: Option<&str>| {
                line.and_then(|l| l.split_once('\t')).map(|(w, v)| (w.to_owned(), v.to_owned()))
            };
            let nothing = || (String::new(), "nothing".to_owned());
            let (what, value) = shown(here).or_else(|| shown(there)).unwrap_or_else(nothing);
            let found = match (shown(here), shown(there)) {
                (Some((a, _)), Some((b, found))) if a == b => found,
                (Some(_), Some((b, _))) => format!("{b} in its place"),
                (None, _) => value.clone(),
                (Some(_), None) => "nothing".to_owned(),
            };
            let value = if here.is_some() { value } else { "nothing".to_owned() };
            return Err(Error::Parallel(format!(
                "the ranks disagree on {what}: rank 0 has {value}, rank {rank} has {found}"
            )));
        }
    }
    Ok(())
}
