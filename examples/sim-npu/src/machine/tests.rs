//! Programs by hand.

use super::*;
use crate::isa::{Combine, FloatOp, Unit};

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn element(operand: usize, strides: Vec<i64>) -> Element {
    let at = Affine { offset: 0, strides };
    Element { operand, format: Format::F32, at, indices: Vec::new(), bounds: Vec::new(), fill: 0 }
}

/// m1 = the sum of m0.
fn sum(length: usize) -> Program {
    let cell = Cell { table: 0, at: Affine::default() };
    let combine = Combine::Float(FloatOp::Add);
    let load =
        vec![Inst::Load { to: 0, from: element(0, vec![1]) }, Inst::Reduce { unit: 0, from: 0 }];
    let store = vec![
        Inst::Peek { to: 0, from: cell.clone() },
        Inst::Store { from: 0, to: element(1, vec![]) },
    ];
    Program {
        name: "sum".to_owned(),
        axes: 1,
        registers: 1,
        tables: vec![1],
        units: vec![Unit::Row { combine, from: 0 }],
        commands: vec![
            Command::Open { unit: 0 },
            Command::Strips { axis: 0, extent: length, code: load },
            Command::Close { unit: 0, to: cell },
            Command::Strips { axis: 0, extent: 1, code: store },
        ],
        ..Program::default()
    }
}

#[test]
fn a_row_is_summed_in_lanes_and_chunks() {
    // Positions 0 and 32 share a lane, so the large numbers cancel before the small ones are added;
    // in the next chunk they do not.
    let mut row = vec![1.0f32; LANES + 1];
    (row[0], row[LANES]) = (1e9, -1e9);
    let mut long = vec![0.0f32; 4097];
    (long[0], long[1], long[4096]) = (1e9, 1.0, -1e9);
    for (row, expected) in [(row, 31.0), (long, 0.0), (vec![], 0.0)] {
        let mut memory = floats(&row);
        let end = memory.len();
        memory.extend([0; 4]);
        let done = run(&sum(row.len()), &mut memory, &[0..end, end..end + 4]).unwrap();
        assert_eq!(memory[end..], f32::to_le_bytes(expected));
        assert!(done.raised.is_none() && done.cycles > 0);
    }
}

#[test]
fn nothing_outside_of_an_operand_is_touched() {
    let mut memory = floats(&[1.0; 8]);
    let before = memory.clone();
    // The row is longer than its tensor, which lies before another.
    let error = run(&sum(5), &mut memory, &[0..16, 16..20]).unwrap_err();
    assert!(error.contains("element 4 is outside of m0"), "{error}");
    assert_eq!(memory, before);
    // So is the result than its own.
    assert!(run(&sum(4), &mut memory, &[0..16, 16..18]).is_err());
    assert_eq!(memory, before);
}

#[test]
fn a_closed_gate_leaves_everything() {
    let program = Program { gate: Some(2), ..sum(2) };
    for (gate, expected) in [(1.0, 9.0), (-0.0, 3.0)] {
        let mut memory = floats(&[1.0, 2.0, 9.0, gate]);
        run(&program, &mut memory, &[0..8, 8..12, 12..16]).unwrap();
        assert_eq!(memory[8..12], f32::to_le_bytes(expected));
    }
}

#[test]
fn programs_have_a_listing() {
    let code = vec![
        Inst::Float { op: FloatOp::MulAdd, to: 3, args: [0, 1, 2] },
        Inst::Float { op: FloatOp::Neg, to: 4, args: [3, 0, 0] },
        Inst::Select { to: 5, args: [4, 3, 2] },
    ];
    let shown = Command::Count {
        axis: 0,
        extent: 2,
        body: vec![Command::Strips { axis: 1, extent: 40, code }],
    };
    let program = Program { name: "p".to_owned(), registers: 6, commands: vec![shown], ..sum(1) };
    let expected = "program p: 6 registers
  table t0: 1 words
  unit u0: Row { combine: Float(Add), from: 0 }
  count i0 to 2
    strips i1 to 40
      v3 = f32.MulAdd v0, v1, v2
      v4 = f32.Neg v3
      v5 = select v4, v3, v2
";
    assert_eq!(program.to_string(), expected);
}
