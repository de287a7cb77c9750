//! [`Bucket`]: values that ranks exchange together; and which of a program's collectives share one.
//! It follows from the program alone, so that it is the same on all ranks.

use crate::collective::Transfer;
use crate::error::{Error, Result};
use tracecast_ir::Node;
use tracecast_ir::op::{Exchange, Lower};

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// It runs a kernel.
    Kernel(usize),
    /// It copies the bytes of its operand to its result.
    Copy,
    /// It begins an exchange between ranks with its operands.
    Begin(usize),
    /// It waits for the results of an exchange.
    Finish(usize),
}

impl Work {
    /// The kernel that is run.
    pub(crate) fn kernel(self) -> Option<usize> {
        match self {
            Work::Kernel(kernel) => Some(kernel),
            Work::Copy | Work::Begin(_) | Work::Finish(_) => None,
        }
    }
}

/// Values that ranks exchange together.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    /// What is told of it in profiles and errors.
    pub(crate) name: String,
    pub(crate) what: Exchange,
    /// How bytes go between ranks.
    pub(crate) transfer: Transfer,
    pub(crate) root: usize,
    /// How many ranks the program is for.
    pub(crate) ranks: usize,
    /// Operands and results, as values of the program.
    pub(crate) members: Vec<(usize, usize)>,
}

/// Buckets while the nodes of a program are taken in order.
///
/// Collectives of one kind that follow each other share a bucket while it has room, unless one
/// depends on the result of another: that does not change with how kernels are formed. A bucket
/// begins behind the last of its operands, and is waited for in front of the first step that reads
/// one of its results, or one of a bucket behind it: they are waited for in the order in which they
/// begin.
pub(crate) struct Filling {
    most: usize,
    pub(crate) buckets: Vec<Bucket>,
    /// Behind how many steps each of them begins.
    places: Vec<usize>,
    /// The bytes of the last one, and the number of its first collective.
    last: (usize, usize),
    /// How many collectives there are, and for each value the last of them that it depends on, by
    /// its number from 1.
    count: usize,
    behind: Vec<usize>,
}

impl Filling {
    /// Buckets of at most that many bytes, or of one value.
    pub(crate) fn new(most: usize) -> Self {
        let (buckets, places, behind) = (Vec::new(), Vec::new(), Vec::new());
        Filling { most, buckets, places, last: (0, 0), count: 0, behind }
    }

    /// Takes a kernel of the program by the values that it reads and gives.
    pub(crate) fn pass(&mut self, inputs: &[usize], outputs: &[usize]) {
        let last = inputs.iter().map(|value| self.behind(*value)).max().unwrap_or(0);
        if last > 0 {
            outputs.iter().for_each(|value| self.set_behind(*value, last));
        }
    }

    /// Takes a collective of the program, given the number of steps before it, the bytes of its
    /// operand, and a result.
    pub(crate) fn take(
        &mut self,
        node: &Node,
        (operand, bytes): (usize, usize),
        result: usize,
        steps: usize,
    ) -> Result<()> {
        let (what, transfer) = transfer(node)?;
        let of = |name| node.attrs.int(name).and_then(|n| usize::try_from(n).ok());
        let (root, ranks) = (of("root").unwrap_or(0), of("ranks").unwrap_or(1));
        self.count += 1;
        let (filled, first) = self.last;
        let joins = self.buckets.last().is_some_and(|last| {
            let alike = last.transfer == transfer;
            let both = last.what == Exchange::AllReduce && what == Exchange::AllReduce;
            let fits = filled.saturating_add(bytes) <= self.most;
            alike && both && fits && self.behind(operand) < first
        });
        if !joins {
            let name = format!("{}_{}", node.op.name(), self.buckets.len());
            self.buckets.push(Bucket { name, what, transfer, root, ranks, members: Vec::new() });
            self.places.push(steps);
            self.last = (0, self.count);
        }
        if let (Some(bucket), Some(place)) = (self.buckets.last_mut(), self.places.last_mut()) {
            bucket.members.push((operand, result));
            *place = steps;
            self.last.0 += bytes;
        }
        self.set_behind(result, self.count);
        Ok(())
    }

    /// The buckets; and what begins and finishes them, in order, with the place among steps with
    /// these inputs in front of which that happens.
    pub(crate) fn end(self, inputs: &[&[usize]]) -> (Vec<Bucket>, Vec<(usize, Work)>) {
        let Filling { buckets, places, .. } = self;
        let mut works = Vec::with_capacity(2 * buckets.len());
        // No later than the next one is waited for.
        let mut latest = inputs.len();
        for (number, (bucket, place)) in buckets.iter().zip(places).enumerate().rev() {
            let gives = |value: &usize| bucket.members.iter().any(|(_, to)| to == value);
            let reader = inputs.iter().position(|inputs| inputs.iter().any(gives));
            latest = reader.map_or(latest, |reader| reader.min(latest)).max(place);
            works.extend([(latest, Work::Finish(number)), (place, Work::Begin(number))]);
        }
        works.reverse();
        works.sort_by_key(|(place, work)| (*place, matches!(work, Work::Finish(_))));
        (buckets, works)
    }

    fn behind(&self, value: usize) -> usize {
        self.behind.get(value).copied().unwrap_or(0)
    }

    fn set_behind(&mut self, value: usize, number: usize) {
        if self.behind.len() <= value {
            self.behind.resize(value + 1, 0);
        }
        self.behind[value] = number;
    }
}

/// What a collective does, and how its bytes go between ranks.
fn transfer(node: &Node) -> Result<(Exchange, Transfer)> {
    let Some(Lower::Exchange(what)) = node.op.def().lowering() else {
        return Err(Error::Plan(format!("{} is no kernel", node.op.name())));
    };
    let root = node.attrs.int("root").and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
    let transfer = match (what, what.across(&node.attrs)) {
        (_, Some(across)) => Transfer::Reduce { across, dtype: node.results[0].dtype },
        (Exchange::Broadcast, None) => Transfer::Broadcast { root },
        (_, None) => Transfer::Gather,
    };
    Ok((*what, transfer))
}
