//! Units that make one word of many, in the order that the language fixes.

use crate::alu;
use crate::isa::{Columns, LANES, Unit, Word};
use tracecast_runtime::ir::kernel::{COLUMN_CHUNK, Cascade, Cmp, Extreme, ROW_CHUNK, SHORT_ROW};

/// What a unit has so far.
pub(super) struct Reducing {
    unit: Unit,
    lanes: [u64; LANES],
    /// Positions of the chunk that were taken.
    taken: usize,
    /// What the chunks before came to.
    chunks: Cascade<u64>,
    /// The position of the next word, and the extreme one with its position.
    next: u64,
    best: Option<(u64, u64)>,
}

impl Reducing {
    pub(super) fn new(unit: Unit) -> Self {
        let mut new = Reducing {
            unit,
            lanes: [0; LANES],
            taken: 0,
            chunks: Cascade::default(),
            next: 0,
            best: None,
        };
        new.open();
        new
    }

    /// Nothing yet.
    pub(super) fn open(&mut self) {
        let from = match self.unit {
            Unit::Row { from, .. } | Unit::All { from, .. } => from,
            Unit::Argument { .. } => 0,
        };
        (self.lanes, self.taken, self.next) = ([from; LANES], 0, 0);
        (self.chunks, self.best) = (Cascade::default(), None);
    }

    /// The next words of the row: as many as there are lanes, or fewer at its end.
    pub(super) fn take(&mut self, words: &[u64]) {
        match self.unit {
            Unit::Row { combine, .. } => {
                if self.taken == ROW_CHUNK {
                    self.chunk();
                }
                for (lane, word) in self.lanes.iter_mut().zip(words) {
                    *lane = alu::combine(combine, *lane, *word);
                }
                self.taken += words.len();
            }
            Unit::All { combine, .. } => {
                let all =
                    words.iter().fold(self.lanes[0], |all, word| alu::combine(combine, all, *word));
                self.lanes[0] = all;
            }
            Unit::Argument { extreme, word } => {
                for new in words {
                    if self.best.is_none_or(|(held, _)| beats(extreme, word, *new, held)) {
                        self.best = Some((*new, self.next));
                    }
                    self.next += 1;
                }
            }
        }
    }

    /// What all of them come to.
    pub(super) fn close(&mut self) -> u64 {
        match self.unit {
            Unit::Row { combine, from } if self.chunks.is_empty() && self.taken < SHORT_ROW => {
                let words = &self.lanes[..self.taken];
                words.iter().fold(from, |all, word| alu::combine(combine, all, *word))
            }
            Unit::Row { combine, .. } => {
                self.chunk();
                self.chunks.total(|a, b| alu::combine(combine, a, b)).unwrap_or(0)
            }
            Unit::All { .. } => self.lanes[0],
            Unit::Argument { .. } => self.best.map_or(0, |(_, at)| at),
        }
    }

    /// Ends a chunk: halves of the lanes are combined until one is left.
    fn chunk(&mut self) {
        let Unit::Row { combine, from } = self.unit else { return };
        let mut width = LANES / 2;
        while width > 0 {
            for lane in 0..width {
                self.lanes[lane] =
                    alu::combine(combine, self.lanes[lane], self.lanes[lane + width]);
            }
            width /= 2;
        }
        self.chunks.push(self.lanes[0], |a, b| alu::combine(combine, a, b));
        (self.lanes, self.taken) = ([from; LANES], 0);
    }
}

/// Whether a word comes before the one held; NaN comes before all others, and the first of equal
/// ones stays.
fn beats(extreme: Extreme, word: Word, new: u64, held: u64) -> bool {
    let is_nan = |of: u64| word == Word::F32 && alu::float(of).is_nan();
    let beyond = match extreme {
        Extreme::Largest => alu::compares(Cmp::Lt, word, held, new),
        Extreme::Smallest => alu::compares(Cmp::Lt, word, new, held),
    };
    !is_nan(held) && (is_nan(new) || beyond)
}

/// What has come down columns so far.
pub(super) struct Coming {
    of: Columns,
    rows: Vec<usize>,
    /// The chunk at hand, and those before it.
    chunks: Vec<(u64, Cascade<u64>)>,
}

impl Coming {
    pub(super) fn new(of: Columns) -> Self {
        let count = of.count;
        Coming { of, rows: vec![0; count], chunks: vec![(of.from, Cascade::default()); count] }
    }

    pub(super) fn count(&self) -> usize {
        self.of.count
    }

    /// The word of the next row.
    pub(super) fn take(&mut self, column: usize, word: u64) -> Result<(), String> {
        if column >= self.of.count {
            return Err(format!("there is no column {column}"));
        }
        let combine = |a, b| alu::combine(self.of.combine, a, b);
        let (chunk, before) = &mut self.chunks[column];
        if self.rows[column] == COLUMN_CHUNK {
            before.push(*chunk, combine);
            (self.rows[column], *chunk) = (0, self.of.from);
        }
        *chunk = combine(*chunk, word);
        self.rows[column] += 1;
        Ok(())
    }

    /// What a column comes to.
    pub(super) fn close(&self, column: usize) -> u64 {
        let combine = |a, b| alu::combine(self.of.combine, a, b);
        let (chunk, mut all) = self.chunks[column].clone();
        all.push(chunk, combine);
        all.total(combine).unwrap_or(chunk)
    }
}
