//! What a collective gives each rank, of the values that all ranks give: the meaning of
//! [`Exchange`].

use super::{Bytes, Value};
use crate::op::{Across, Exchange};
use crate::{Attrs, TensorType};

/// The results of all ranks, each of type `ty`, in the order of the ranks.
pub(super) fn exchange(
    what: Exchange,
    attrs: &Attrs,
    ty: &TensorType,
    given: &[&Value],
) -> Result<Vec<Value>, String> {
    let ranks = attrs.int("ranks").unwrap_or(1);
    if ranks != given.len() as i64 {
        return Err(format!("is for {ranks} ranks, evaluated with {}", given.len()));
    }
    let root = attrs.int("root").unwrap_or(0) as usize;
    let total = |across: Across| -> Result<Bytes, String> {
        let bytes: Vec<&[u8]> = given.iter().map(|value| &value.bytes[..]).collect();
        let mut into = Bytes::zeroed(bytes[0].len())?;
        across.combine(ty.dtype, &bytes, &mut into);
        Ok(into)
    };
    let value = |bytes: &[u8]| Value::new(ty.clone(), bytes.to_vec());
    match what {
        Exchange::Broadcast => given.iter().map(|_| value(&given[root].bytes)).collect(),
        Exchange::AllGather => {
            let all: Vec<u8> = given.iter().flat_map(|value| value.bytes.iter().copied()).collect();
            given.iter().map(|_| value(&all)).collect()
        }
        Exchange::AllReduce => {
            let across = what.across(attrs).ok_or("has no `across`")?;
            let all = total(across)?;
            given.iter().map(|_| value(&all)).collect()
        }
        Exchange::ReduceTo => {
            let all = total(Across::Sum)?;
            let of = |rank| if rank == root { value(&all) } else { Value::zeros(ty.clone()) };
            (0..given.len()).map(of).collect()
        }
        Exchange::ReduceScatter => {
            let all = total(Across::Sum)?;
            let part = ty.bytes().get();
            (0..given.len()).map(|rank| value(&all[rank * part..(rank + 1) * part])).collect()
        }
    }
}
