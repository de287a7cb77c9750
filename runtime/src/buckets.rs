//! [`Bucket`]: values that ranks exchange together; and which of a program's collectives share one. It follows from the program alone, so
//! that it is the same on all ranks.

use crate::collective::Transfer;
use crate::error::{Error, Result};
use tracecast_ir::Node;
use tracecast_ir::op::{Exchange, Lower};

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// It runs a kernel.
    Kernel(usize),
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
            Work::Begin(_) | Work::Finish(_) => None,
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

/// Buckets while the nodes of a program are taken in order, and the steps that become due on the way. A bucket begins behind the last of its operands,
/// and is waited for in front of the first step that reads one of its results.
pub(crate) struct Filling {
    most: usize,
    /// Those that have begun.
    pub(crate) buckets: Vec<Bucket>,
    /// The bucket that takes more, and its bytes.
    open: Option<(Bucket, usize)>,
    /// Those that have begun and are not waited for.
    flying: Vec<usize>,
    /// The steps that are due.
    due: Vec<Work>,
}

impl Filling {
    /// Buckets of at most that many bytes, or of one value.
    pub(crate) fn new(most: usize) -> Self {
        Filling { most, buckets: Vec::new(), open: None, flying: Vec::new(), due: Vec::new() }
    }

    /// The steps that have become due, in order.
    pub(crate) fn due(&mut self) -> Vec<Work> {
        std::mem::take(&mut self.due)
    }

    /// Waits for what a step is about to read.
    pub(crate) fn before(&mut self, inputs: &[usize]) {
        let gives = |bucket: &Bucket| bucket.members.iter().any(|(_, to)| inputs.contains(to));
        if self.open.as_ref().is_some_and(|(bucket, _)| gives(bucket)) {
            self.begin();
        }
        let (read, flying): (Vec<usize>, Vec<usize>) =
            self.flying.iter().partition(|bucket| gives(&self.buckets[**bucket]));
        self.flying = flying;
        self.due.extend(read.into_iter().map(Work::Finish));
    }

    /// Takes a collective of the program: an operand of so many bytes, and a result.
    pub(crate) fn take(
        &mut self,
        node: &Node,
        (operand, bytes): (usize, usize),
        result: usize,
    ) -> Result<()> {
        let Some(Lower::Exchange(what)) = node.op.def().lowering() else {
            return Err(Error::Plan(format!("{} is no kernel", node.op.name())));
        };
        let of = |name| node.attrs.int(name).and_then(|n| usize::try_from(n).ok());
        let (root, ranks) = (of("root").unwrap_or(0), of("ranks").unwrap_or(1));
        let dtype = node.results[0].dtype;
        let transfer = match (what, what.across(&node.attrs)) {
            (_, Some(across)) => Transfer::Reduce { across, dtype },
            (Exchange::Broadcast, None) => Transfer::Broadcast { root },
            (_, None) => Transfer::Gather,
        };
        let joins = self.open.as_ref().is_some_and(|(bucket, filled)| {
            let alike = bucket.transfer == transfer;
            let both = bucket.what == Exchange::AllReduce && *what == Exchange::AllReduce;
            alike && both && filled.saturating_add(bytes) <= self.most
        });
        if !joins {
            self.begin();
            let name = format!("{}_{}", node.op.name(), self.buckets.len());
            let members = Vec::new();
            self.open = Some((Bucket { name, what: *what, transfer, root, ranks, members }, 0));
        }
        if let Some((bucket, filled)) = &mut self.open {
            bucket.members.push((operand, result));
            *filled += bytes;
            if *filled >= self.most {
                self.begin();
            }
        }
        Ok(())
    }

    /// Begins what is open, and waits for everything.
    pub(crate) fn end(&mut self) {
        self.begin();
        self.due.extend(self.flying.drain(..).map(Work::Finish));
    }

    fn begin(&mut self) {
        let Some((bucket, _)) = self.open.take() else { return };
        self.flying.push(self.buckets.len());
        self.due.push(Work::Begin(self.buckets.len()));
        self.buckets.push(bucket);
    }
}
