//! [`OneRank`]: a run that is alone.

use super::{Collective, Done, Flight, Label, Pending, Reduction, Transfer};
use crate::error::Result;
use std::time::Instant;

/// One rank, which gets what it gives.
#[derive(Clone, Copy, Debug, Default)]
pub struct OneRank;

impl Collective for OneRank {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn start(&self, _: Transfer, _: Label, data: Vec<u8>) -> Result<Pending> {
        let (answer, pending) = Pending::new();
        let now = Instant::now();
        answer.give(Ok(Done { data, began: now, ended: now }));
        Ok(pending)
    }

    fn give_up(&self, _: Label, _: &str) {}

    fn sees_memory(&self) -> bool {
        true
    }

    fn reduce(&self, reduction: &Reduction<'_>) -> Result<Flight> {
        let Reduction { ready, places, device, .. } = *reduction;
        for (from, to) in places.operands.iter().zip(&places.results) {
            if !from.memory.same(&to.memory) || from.at != to.at {
                let (from_at, to_at) = ((&from.memory, from.at), (&to.memory, to.at));
                // Of one rank, the merged is what it has.
                device.merge(&[from_at], &[to_at], from.len, &mut |_, _, _| ())?;
            }
        }
        Ok(Flight { began: ready, ended: ready })
    }
}
