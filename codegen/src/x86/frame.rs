//! The frame of a loop: which general register holds which pointer, and the layout of the loop's
//! part of the scratch.
//!
//! ```text
//! cells      | what the caller puts there: 16 bytes each, addresses and numbers
//! broadcasts | values of the cells, in every lane of a vector
//! copies     | the last, incomplete group of operands with small elements
//! spills     | values without a register
//! ```

use super::asm::{Mem, RBP, RBX, RDI, Reg};

/// The bytes of a cell.
pub(crate) const CELL: i32 = 16;
/// The bytes of sixteen of the largest elements.
const TAIL_COPY: i32 = 128;

/// Registers for pointers. The address of the scratch, positions and their bounds have others.
const POINTERS: [Reg; 9] = [8, 9, 10, RBX, RBP, 12, 13, 14, 15];
/// Those that a function must leave as they were.
const SAVED: [Reg; 6] = [RBX, RBP, 12, 13, 14, 15];

/// The layout of a loop.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    /// Where it initialises in the scratch; a multiple of 64.
    pub(super) area: i32,
    /// The bytes of a vector.
    pub(super) vector: i32,
    pub(super) cells: usize,
    pub(super) broadcasts: usize,
    pub(super) tail_copies: usize,
    pub(super) pointers: Vec<PointerFrom>,
}

/// Where a pointer comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PointerFrom {
    /// From a cell.
    Cell(u16),
    /// The scratch, less four bytes for each position before the first one of the call.
    Temporaries,
}

impl Frame {
    /// The offset of a cell.
    pub(super) fn cell(&self, number: u16) -> i32 {
        self.area + CELL * i32::from(number)
    }

    fn broadcasts_start(&self) -> i32 {
        self.area + (CELL * self.cells as i32 + self.vector - 1) / self.vector * self.vector
    }

    /// The offset of a broadcast.
    pub(super) fn broadcast(&self, number: u16) -> i32 {
        self.broadcasts_start() + self.vector * i32::from(number)
    }

    /// The offset of the copy of an operand's last group.
    pub(super) fn tail_copy(&self, number: u16) -> i32 {
        self.broadcasts_start()
            + self.vector * self.broadcasts as i32
            + TAIL_COPY * i32::from(number)
    }

    /// The offset of a spilled value.
    fn spill_offset(&self, number: usize) -> i32 {
        self.tail_copy(self.tail_copies as u16) + self.vector * number as i32
    }

    /// The address of a spilled value.
    pub(super) fn spill(&self, number: usize) -> Mem {
        Mem { base: RDI, index: None, displacement: self.spill_offset(number) }
    }

    /// The bytes of everything, with that many spilled values.
    pub(super) fn bytes(&self, spilled: usize) -> i32 {
        self.spill_offset(spilled) - self.area
    }

    /// The register of a pointer, while there are enough.
    pub(super) fn pointer(&self, number: u16) -> Option<Reg> {
        POINTERS.get(usize::from(number)).copied()
    }

    /// Where a pointer without a register is. Only those of cells are that numerous.
    pub(super) fn pointer_cell(&self, number: u16) -> i32 {
        match self.pointers[usize::from(number)] {
            PointerFrom::Cell(cell) => self.cell(cell),
            PointerFrom::Temporaries => {
                unreachable!("the pointer to temporaries comes first and so has a register")
            }
        }
    }

    /// The registers to save.
    pub(super) fn saved(&self) -> Vec<Reg> {
        let used = POINTERS.iter().take(self.pointers.len());
        used.copied().filter(|r| SAVED.contains(r)).collect()
    }
}
