//! The encoder against an independent disassembler, and the recorded functions against their
//! definitions. Whole loops are in `loops`.

mod loops;

use super::asm::Under;
use super::asm::{Asm, Mem, R11, RAX, RBP, RCX, RDI, RDX, RSI, Rm, When};
use super::evex::{MASK, TAIL};
use super::functions::{sequence, sequence_of_doubles};
use super::inst::{Binary, Load, Op, Unary, compare};
use super::loops::{BROADCAST, BROADCAST_64, BROADCAST_128, MOVE, STORE};
use super::text;
use crate::machine::Width;
use crate::plan::phases::Lanes;
use crate::x86::regalloc;
use iced_x86::{Decoder, DecoderOptions, Instruction, OpKind, Register};
use tracecast_ir::kernel::math::{self, Double};
use tracecast_ir::kernel::{Code, Function};

/// The instructions of code, all of them valid.
pub(crate) fn decoded(bytes: &[u8], instructions: usize) -> Vec<Instruction> {
    let code = &bytes[..instructions];
    let decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    let all: Vec<Instruction> = decoder.into_iter().collect();
    assert!(all.iter().all(|i| !i.is_invalid()), "an instruction that is none: {all:?}");
    assert_eq!(all.iter().map(|i| i.len()).sum::<usize>(), instructions);
    all
}

/// Checks what can be seen in code alone: constants are where the pool is, jumps lead to
/// instructions, vector code is left before the end.
pub(crate) fn is_sound(width: Width, bytes: &[u8], instructions: usize) {
    let vector = width.bytes() as usize;
    let all = decoded(bytes, instructions);
    let starts: Vec<u64> = all.iter().map(Instruction::ip).collect();
    for i in &all {
        if i.is_ip_rel_memory_operand() {
            let at = i.ip_rel_memory_address() as usize;
            let pool = instructions.next_multiple_of(vector);
            assert!(
                at >= pool && at.is_multiple_of(vector) && at + vector <= bytes.len(),
                "{i:?} reads {at}"
            );
        }
        if name(i).starts_with('j') {
            assert!(starts.contains(&i.near_branch64()), "{i:?} leads into an instruction");
        }
        assert!(i.op_kind(0) != OpKind::Register || i.op0_register() != Register::RSP);
    }
    let last = all.last().expect("code ends with a return");
    assert_eq!(name(last), "ret");
}

fn one(write: impl FnOnce(&mut Asm)) -> Instruction {
    one_of(Width::Bits256, write)
}

fn one_of(width: Width, write: impl FnOnce(&mut Asm)) -> Instruction {
    let mut asm = Asm::new(width);
    write(&mut asm);
    let (bytes, length) = asm.finish();
    let all = decoded(&bytes, length);
    assert_eq!(all.len(), 1, "{all:?}");
    all[0]
}

fn name(i: &Instruction) -> String {
    format!("{:?}", i.mnemonic()).to_lowercase()
}

/// The name that listings have for an instruction, with all comparisons as one.
fn text_name(op: Op, width: Width, lanes: Lanes) -> &'static str {
    match text::mnemonic(op, width, lanes) {
        compare if compare.starts_with("vcmp") && compare.ends_with("ps") => "vcmpps",
        compare if compare.starts_with("vcmp") && compare.ends_with("pd") => "vcmppd",
        other => other,
    }
}

fn ymm(number: u8) -> Register {
    Register::YMM0 + u32::from(number)
}

fn general(number: u8) -> Register {
    Register::RAX + u32::from(number)
}

/// Every shape of address.
fn addresses() -> Vec<Mem> {
    let mut all = Vec::new();
    for base in [RDI, RBP, 4, 8, 12, 13, R11] {
        for index in [None, Some((RAX, 0)), Some((RSI, 2)), Some((9, 3))] {
            for displacement in [0, 32, -128, 127, 128, -129, 70_000] {
                all.push(Mem { base, index, displacement });
            }
        }
    }
    all
}

fn check_address(i: &Instruction, m: &Mem) {
    assert_eq!(i.memory_base(), general(m.base), "{i:?}");
    let index = m.index.map_or(Register::None, |(r, _)| general(r));
    assert_eq!(i.memory_index(), index, "{i:?}");
    assert_eq!(i.memory_index_scale(), m.index.map_or(1, |(_, s)| 1 << s), "{i:?}");
    assert_eq!(i.memory_displacement64() as i64, i64::from(m.displacement), "{i:?}");
}

const TWOS: [(Binary, &str); 24] = [
    (Binary::Add, "vaddps"),
    (Binary::Sub, "vsubps"),
    (Binary::Mul, "vmulps"),
    (Binary::Div, "vdivps"),
    (Binary::Min, "vminps"),
    (Binary::Max, "vmaxps"),
    (Binary::And, "vandps"),
    (Binary::AndNot, "vandnps"),
    (Binary::Or, "vorps"),
    (Binary::Xor, "vxorps"),
    (Binary::Compare(compare::LESS), "vcmpps"),
    (Binary::Compare(compare::NOT_EQUAL), "vcmpps"),
    (Binary::IntAdd, "vpaddd"),
    (Binary::IntSub, "vpsubd"),
    (Binary::IntMul, "vpmulld"),
    (Binary::IntMax, "vpmaxsd"),
    (Binary::IntMin, "vpminsd"),
    (Binary::IntEqual, "vpcmpeqd"),
    (Binary::IntGreater, "vpcmpgtd"),
    (Binary::NarrowU16, "vpackusdw"),
    (Binary::NarrowI16, "vpackssdw"),
    (Binary::NarrowU8, "vpackuswb"),
    (Binary::NarrowI8, "vpacksswb"),
    (Binary::Compare(compare::UNORDERED), "vcmpps"),
];

#[test]
fn instructions_of_two_operands() {
    for (two, known) in TWOS {
        let (opcode, imm) = two.opcode();
        assert_eq!(text_name(Op::Binary(two), Width::Bits256, Lanes::Bits32), known);
        for [to, a, b] in [[0, 1, 2], [15, 8, 7], [3, 12, 13], [9, 0, 15]] {
            let i = one(|asm| asm.vex(opcode, to, a, Rm::Reg(b), imm));
            assert_eq!(name(&i), known);
            assert_eq!(
                [i.op0_register(), i.op1_register(), i.op2_register()],
                [to, a, b].map(ymm),
                "{i:?}"
            );
            assert!(imm.is_none_or(|imm| i.immediate8() == imm));
        }
        for m in addresses().into_iter().filter(|m| m.base != 4 || m.index.is_none()) {
            let i = one(|asm| asm.vex(opcode, 10, 5, Rm::Mem(m), imm));
            assert_eq!((i.op0_register(), i.op1_register()), (ymm(10), ymm(5)));
            check_address(&i, &m);
        }
    }
}

#[test]
fn instructions_of_one_operand_loads_and_stores() {
    let ones = [
        (Unary::Sqrt, "vsqrtps"),
        (Unary::Floor, "vroundps"),
        (Unary::ToFloat, "vcvtdq2ps"),
        (Unary::ToInt, "vcvttps2dq"),
        (Unary::IntAbs, "vpabsd"),
        (Unary::Permute64(0x1b), "vpermq"),
    ];
    for (op, mnemonic) in ones {
        let (opcode, imm) = op.opcode();
        assert_eq!(text_name(Op::Unary(op), Width::Bits256, Lanes::Bits32), mnemonic);
        let i = one(|asm| asm.vex(opcode, 9, 0, Rm::Reg(14), imm));
        assert_eq!(
            (name(&i).as_str(), i.op0_register(), i.op1_register()),
            (mnemonic, ymm(9), ymm(14))
        );
    }
    let loads = [
        (Load::Full, 0, "vmovups"),
        (Load::Masked, 3, "vmaskmovps"),
        (Load::U16, 0, "vpmovzxwd"),
        (Load::U8, 0, "vpmovzxbd"),
        (Load::F16, 0, "vcvtph2ps"),
    ];
    let others =
        [(BROADCAST, "vbroadcastss"), (BROADCAST_128, "vbroadcastf128"), (MOVE, "vmovups")];
    let loads = loads.into_iter().map(|(l, mask, n)| (l.opcode(), mask, n));
    for (opcode, mask, mnemonic) in loads.chain(others.map(|(o, n)| (o, 0, n))) {
        for m in addresses().into_iter().filter(|m| m.base != 4 || m.index.is_none()) {
            let i = one(|asm| asm.vex(opcode, 11, mask, Rm::Mem(m), None));
            assert_eq!((name(&i).as_str(), i.op0_register()), (mnemonic, ymm(11)));
            check_address(&i, &m);
        }
    }
    let m = Mem { base: 8, index: Some((RAX, 1)), displacement: 16 };
    let i = one(|asm| asm.vex(STORE, 12, 0, Rm::Mem(m), None));
    assert_eq!((name(&i).as_str(), i.op1_register()), ("vmovups", ymm(12)));
    let i = one(|asm| asm.vex(regalloc::STREAM, 12, 0, Rm::Mem(m), None));
    assert_eq!((name(&i).as_str(), i.op1_register()), ("vmovntps", ymm(12)));
    for (opcode, mnemonic) in regalloc::FUSED {
        let i = one(|asm| asm.vex(opcode, 12, 3, Rm::Mem(m), None));
        let masked_store = [i.op1_register(), i.op2_register()] == [ymm(3), ymm(12)];
        let fused = [i.op0_register(), i.op1_register()] == [ymm(12), ymm(3)];
        assert!(name(&i) == mnemonic && (fused || masked_store), "{i:?}");
    }
}

fn zmm(number: u8) -> Register {
    Register::ZMM0 + u32::from(number)
}

#[test]
fn instructions_on_lanes_of_64_bits() {
    let twos = [
        (Binary::Add, "vaddpd"),
        (Binary::Sub, "vsubpd"),
        (Binary::Mul, "vmulpd"),
        (Binary::Div, "vdivpd"),
        (Binary::Min, "vminpd"),
        (Binary::Max, "vmaxpd"),
        (Binary::And, "vandpd"),
        (Binary::AndNot, "vandnpd"),
        (Binary::Or, "vorpd"),
        (Binary::Xor, "vxorpd"),
        (Binary::Compare(compare::LESS), "vcmppd"),
        (Binary::IntAdd, "vpaddq"),
        (Binary::IntSub, "vpsubq"),
        (Binary::IntMul, "vpmullq"),
        (Binary::IntMax, "vpmaxsq"),
        (Binary::IntMin, "vpminsq"),
        (Binary::IntEqual, "vpcmpeqq"),
        (Binary::IntGreater, "vpcmpgtq"),
        (Binary::Scale, "vscalefpd"),
    ];
    for (two, mnemonic) in twos {
        let (opcode, imm) = two.opcode_64();
        assert_eq!(text_name(Op::Binary(two), Width::Bits512, Lanes::Bits64), mnemonic);
        let i = one_of(Width::Bits512, |asm| asm.vector(opcode, 5, 21, Rm::Reg(30), imm));
        let registers = (i.op1_register(), i.op2_register());
        assert_eq!((name(&i).as_str(), registers), (mnemonic, (zmm(21), zmm(30))));
        assert!(imm.is_none_or(|imm| i.immediate8() == imm));
    }
    let ones = [
        (Unary::Sqrt, "vsqrtpd"),
        (Unary::Floor, "vrndscalepd"),
        (Unary::ToFloat, "vcvtqq2pd"),
        (Unary::ToInt, "vcvttpd2qq"),
        (Unary::IntAbs, "vpabsq"),
        (Unary::Exponent, "vgetexppd"),
        (Unary::Fraction, "vgetmantpd"),
    ];
    for (op, mnemonic) in ones {
        let (opcode, imm) = op.opcode_64();
        assert_eq!(text_name(Op::Unary(op), Width::Bits512, Lanes::Bits64), mnemonic);
        let i = one_of(Width::Bits512, |asm| asm.vector(opcode, 29, 0, Rm::Reg(18), imm));
        let registers = (i.op0_register(), i.op1_register());
        assert_eq!((name(&i).as_str(), registers), (mnemonic, (zmm(29), zmm(18))));
    }
    let m = Mem { base: 8, index: Some((RAX, 0)), displacement: 64 };
    for (opcode, mnemonic) in [
        (Load::U8To64.opcode(), "vpmovzxbq"),
        (BROADCAST_64, "vbroadcastsd"),
        (regalloc::STORE_LOW_BYTES, "vpmovqb"),
    ] {
        let i = one_of(Width::Bits512, |asm| asm.vector(opcode, 29, 0, Rm::Mem(m), None));
        assert_eq!(name(&i), mnemonic);
        check_address(&i, &m);
    }
}

#[test]
fn instructions_of_512_bits() {
    let long = |two: &Binary| {
        !matches!(two, Binary::NarrowU16 | Binary::NarrowI16 | Binary::NarrowU8 | Binary::NarrowI8)
    };
    let twos = TWOS.into_iter().filter(|(two, _)| long(two)).chain([(Binary::Scale, "vscalefps")]);
    for (two, mnemonic) in twos {
        let (opcode, imm) = two.opcode();
        assert_eq!(text_name(Op::Binary(two), Width::Bits512, Lanes::Bits32), mnemonic);
        for [to, a, b] in [[0, 1, 2], [31, 8, 16], [3, 28, 13], [17, 0, 31]] {
            let to = if two.is_mask() { MASK } else { to };
            let i = one_of(Width::Bits512, |asm| asm.vector(opcode, to, a, Rm::Reg(b), imm));
            let result = if two.is_mask() { Register::K1 } else { zmm(to) };
            assert_eq!(name(&i), mnemonic);
            assert_eq!([i.op0_register(), i.op1_register()], [result, zmm(a)], "{i:?}");
            assert_eq!(i.op2_register(), zmm(b), "{i:?}");
            assert!(imm.is_none_or(|imm| i.immediate8() == imm));
        }
        for m in addresses().into_iter().filter(|m| m.base != 4 || m.index.is_none()) {
            let i = one_of(Width::Bits512, |asm| asm.vector(opcode, 5, 21, Rm::Mem(m), imm));
            assert_eq!((name(&i).as_str(), i.op1_register()), (mnemonic, zmm(21)));
            check_address(&i, &m);
        }
    }
    let ones = [
        (Unary::Sqrt, "vsqrtps"),
        (Unary::Floor, "vrndscaleps"),
        (Unary::ToFloat, "vcvtdq2ps"),
        (Unary::ToInt, "vcvttps2dq"),
        (Unary::IntAbs, "vpabsd"),
        (Unary::Exponent, "vgetexpps"),
        (Unary::Fraction, "vgetmantps"),
    ];
    for (op, mnemonic) in ones {
        let (opcode, imm) = op.opcode();
        assert_eq!(text_name(Op::Unary(op), Width::Bits512, Lanes::Bits32), mnemonic);
        let i = one_of(Width::Bits512, |asm| asm.vector(opcode, 29, 0, Rm::Reg(18), imm));
        let registers = (i.op0_register(), i.op1_register());
        assert_eq!((name(&i).as_str(), registers), (mnemonic, (zmm(29), zmm(18))));
    }
    for (op, mnemonic, low) in [
        (Unary::Truncate16, "vpmovdw", Register::YMM0 + 18),
        (Unary::Truncate8, "vpmovdb", Register::XMM0 + 18),
    ] {
        let i = one_of(Width::Bits512, |asm| {
            asm.vector(op.opcode().0, 29, 0, Rm::Reg(18), None);
        });
        let registers = (i.op0_register(), i.op1_register());
        assert_eq!((name(&i).as_str(), registers), (mnemonic, (low, zmm(29))));
    }
}

#[test]
fn lanes_that_are_left_out() {
    let loads = [
        (Load::Full, "vmovups"),
        (Load::U16, "vpmovzxwd"),
        (Load::U8, "vpmovzxbd"),
        (Load::F16, "vcvtph2ps"),
    ];
    let others = [(BROADCAST, "vbroadcastss"), (BROADCAST_128, "vbroadcastf32x4")];
    let loads = loads.into_iter().map(|(l, n)| (l.opcode(), n));
    for (opcode, mnemonic) in loads.chain(others) {
        for m in addresses().into_iter().filter(|m| m.base != 4 || m.index.is_none()) {
            let i = one_of(Width::Bits512, |asm| {
                asm.evex(opcode, Under::Zeroing(TAIL), [27, 0], Rm::Mem(m), None);
            });
            assert_eq!((name(&i).as_str(), i.op0_register()), (mnemonic, zmm(27)));
            assert!(i.op_mask() == Register::K2 && i.zeroing_masking(), "{i:?}");
            check_address(&i, &m);
        }
    }
    for (opcode, mnemonic, from) in regalloc::STORES {
        for m in addresses().into_iter().filter(|m| m.base != 4 || m.index.is_none()) {
            let imm = (mnemonic == "vcvtps2ph").then_some(0);
            let i = one_of(Width::Bits512, |asm| {
                asm.evex(opcode, Under::Mask(TAIL), [27, 0], Rm::Mem(m), imm);
            });
            assert_eq!(name(&i), mnemonic);
            assert_eq!((i.op1_register(), i.op_mask()), (from, Register::K2), "{i:?}");
            check_address(&i, &m);
        }
    }
    let mut asm = Asm::new(Width::Bits512);
    asm.spread_mask(20);
    asm.take_mask(20);
    asm.blend_mask(MASK, 20, 21, Rm::Reg(22));
    asm.load_mask(TAIL, Mem { base: R11, index: Some((RDX, 1)), displacement: 0 });
    let (bytes, length) = asm.finish();
    let all = decoded(&bytes, length);
    let names: Vec<String> = all.iter().map(name).collect();
    assert_eq!(names, ["vpmovm2d", "vpmovd2m", "vblendmps", "kmovw"]);
    assert_eq!((all[0].op0_register(), all[0].op1_register()), (zmm(20), Register::K1));
    assert_eq!((all[1].op0_register(), all[1].op1_register()), (Register::K1, zmm(20)));
    assert_eq!((all[2].op_mask(), all[2].op1_register()), (Register::K1, zmm(21)));
    assert_eq!(all[3].op0_register(), Register::K2);
}

#[test]
fn integer_instructions() {
    let m = Mem { base: R11, index: Some((RSI, 1)), displacement: 0 };
    let cases: [(&str, Instruction); 14] = [
        ("sfence", one(Asm::fence)),
        (
            "prefetchw",
            one(|asm| asm.prefetch(Mem { base: 9, index: Some((RAX, 1)), displacement: 64 }, true)),
        ),
        (
            "prefetcht0",
            one(|asm| asm.prefetch(Mem { base: 12, index: None, displacement: 0 }, false)),
        ),
        ("test", one(|asm| asm.test(R11, 31))),
        ("mov", one(|asm| asm.mov(12, RSI))),
        ("mov", one(|asm| asm.load(13, Mem { base: RDI, index: None, displacement: 640 }))),
        ("lea", one(|asm| asm.lea(9, m))),
        ("add", one(|asm| asm.add_number(RAX, 16))),
        ("sub", one(|asm| asm.sub(RDX, RAX))),
        ("neg", one(|asm| asm.negate(10))),
        ("cmp", one(|asm| asm.compare(RAX, RSI))),
        ("imul", one(|asm| asm.multiply32(RCX, RAX, -3))),
        ("movzx", one(|asm| asm.load_bytes(1, RCX, m))),
        ("mov", one(|asm| asm.store_bytes(2, m, RCX))),
    ];
    for (mnemonic, i) in cases {
        assert_eq!(name(&i), mnemonic);
    }
    for (size, register) in
        [(1, Register::CL), (2, Register::CX), (4, Register::ECX), (8, Register::RCX)]
    {
        let i = one(|asm| asm.store_bytes(size, m, RCX));
        assert_eq!(i.op1_register(), register);
        check_address(&i, &m);
        check_address(&one(|asm| asm.load_bytes(size, RCX, m)), &m);
    }
    let i = one(|asm| asm.mov(12, RSI));
    assert_eq!((i.op0_register(), i.op1_register()), (Register::R12, Register::RSI));
}

#[test]
fn jumps_pools_and_the_end() {
    let mut asm = Asm::new(Width::Bits256);
    let (top, out) = (asm.label(), asm.label());
    asm.push(12);
    asm.bind(top);
    asm.jump(When::GreaterEqual, out);
    let vector = asm.pool([7; 16]);
    assert_eq!((asm.pool([7; 16]), asm.pool([8; 16])), (vector, vector + 1));
    asm.vex(Binary::Add.opcode().0, 1, 2, Rm::Pool(vector + 1), None);
    asm.vex(Binary::Compare(3).opcode().0, 1, 2, Rm::Pool(vector), Some(3));
    asm.jump(When::Less, top);
    asm.bind(out);
    asm.leave(&[12]);
    let (bytes, length) = asm.finish();
    is_sound(Width::Bits256, &bytes, length);
    let all = decoded(&bytes, length);
    let targets: Vec<u64> =
        all.iter().filter(|i| name(i).starts_with('j')).map(|i| i.near_branch64()).collect();
    assert_eq!(targets, [all[5].ip(), all[1].ip()]);
    let words = |i: &Instruction| bytes[i.ip_rel_memory_address() as usize];
    assert_eq!((words(&all[2]), words(&all[3])), (8, 7));
}

/// Runs a sequence of one lane, as the processor would.
fn run(function: Function, width: Width, x: f32) -> f32 {
    let steps = sequence(function, width).unwrap();
    let mut values = vec![x.to_bits()];
    for (op, args) in &steps.steps {
        let a = |i: usize| values[args[i] as usize];
        let f = |i: usize| f32::from_bits(a(i));
        let mask = |holds: bool| if holds { u32::MAX } else { 0 };
        values.push(match op {
            Op::Splat(bits) => *bits,
            Op::Fma => math::fma(f(0), f(1), f(2)).to_bits(),
            Op::Blend => {
                if a(2) >> 31 != 0 {
                    a(1)
                } else {
                    a(0)
                }
            }
            Op::Shift(super::inst::Shift::Left, n) => a(0) << n,
            Op::Shift(super::inst::Shift::Right, n) => a(0) >> n,
            Op::Shift(super::inst::Shift::Signed, n) => ((a(0) as i32) >> n) as u32,
            Op::Unary(Unary::Sqrt) => f(0).sqrt().to_bits(),
            Op::Unary(Unary::Exponent) => math::parts_of_bits(f(0)).0.to_bits(),
            Op::Unary(Unary::Fraction) => math::parts_of_bits(f(0)).1.to_bits(),
            Op::Binary(two) => match two {
                Binary::Add => (f(0) + f(1)).to_bits(),
                Binary::Sub => (f(0) - f(1)).to_bits(),
                Binary::Mul => (f(0) * f(1)).to_bits(),
                Binary::Div => (f(0) / f(1)).to_bits(),
                Binary::Min => {
                    if f(0) < f(1) {
                        a(0)
                    } else {
                        a(1)
                    }
                }
                Binary::Max => {
                    if f(0) > f(1) {
                        a(0)
                    } else {
                        a(1)
                    }
                }
                Binary::And => a(0) & a(1),
                Binary::Or => a(0) | a(1),
                Binary::Xor => a(0) ^ a(1),
                Binary::Scale => {
                    // In f64 every step but the last is exact.
                    let product = f64::from(f(0)) * f64::from(f(1)).exp2();
                    (product as f32).to_bits()
                }
                Binary::IntAdd => a(0).wrapping_add(a(1)),
                Binary::IntSub => a(0).wrapping_sub(a(1)),
                Binary::IntEqual => mask(a(0) == a(1)),
                Binary::Compare(compare::LESS) => mask(f(0) < f(1)),
                Binary::Compare(compare::EQUAL) => mask(f(0) == f(1)),
                other => panic!("{other:?} in {function:?}"),
            },
            other => panic!("{other:?} in {function:?}"),
        });
    }
    f32::from_bits(values[steps.result as usize])
}

#[test]
fn recorded_functions_are_their_definitions() {
    for function in Function::ALL {
        for width in [Width::Bits256, Width::Bits512] {
            let is_recorded = sequence(function, width).is_some();
            assert_eq!(is_recorded, function.code() == Code::StraightLine, "{function:?}");
            for bits in (0..=u32::MAX).step_by(65_521).take_while(|_| is_recorded) {
                let x = f32::from_bits(bits);
                let (found, want) = (run(function, width, x), function.of_f32(x));
                assert!(
                    found.to_bits() == want.to_bits() || found.is_nan() && want.is_nan(),
                    "{function:?}({x:e}): {found:e}, not {want:e}"
                );
            }
        }
    }
}

/// What the recorded steps of a function of f64 give.
fn run_doubles(function: Function, x: f64) -> f64 {
    let steps = sequence_of_doubles(function).unwrap();
    let mut values = vec![x.to_bits()];
    for (op, args) in &steps.steps {
        let a = |at: usize| values[args[at] as usize];
        let f = |at: usize| f64::from_bits(a(at));
        values.push(match *op {
            Op::Splat64(bits) => bits,
            Op::Blend => a(if a(2) == 0 { 0 } else { 1 }),
            Op::Unary(Unary::Sqrt) => f(0).sqrt().to_bits(),
            Op::Unary(Unary::Exponent) => f(0).parts().0.to_bits(),
            Op::Unary(Unary::Fraction) => f(0).parts().1.to_bits(),
            Op::Binary(Binary::Add) => (f(0) + f(1)).to_bits(),
            Op::Binary(Binary::Sub) => (f(0) - f(1)).to_bits(),
            Op::Binary(Binary::Mul) => (f(0) * f(1)).to_bits(),
            Op::Binary(Binary::Div) => (f(0) / f(1)).to_bits(),
            Op::Binary(Binary::Min) => a(if f(0) < f(1) { 0 } else { 1 }),
            Op::Binary(Binary::Max) => a(if f(0) > f(1) { 0 } else { 1 }),
            Op::Binary(Binary::And) => a(0) & a(1),
            Op::Binary(Binary::Or) => a(0) | a(1),
            Op::Binary(Binary::Scale) => f(0).scale(f(1)).to_bits(),
            Op::Binary(Binary::Compare(compare::LESS)) => u64::from(f(0) < f(1)),
            other => panic!("{other:?} in {function:?}"),
        });
    }
    f64::from_bits(values[steps.result as usize])
}

#[test]
fn recorded_functions_of_doubles_are_their_definitions() {
    for function in Function::ALL {
        let is_recorded = function.has_doubles() && function.code() == Code::StraightLine;
        assert_eq!(sequence_of_doubles(function).is_some(), is_recorded, "{function:?}");
        let numbers = (0..=u64::MAX).step_by(340_282_366_920_937).map(f64::from_bits);
        for x in numbers.take_while(|_| is_recorded) {
            let (found, want) = (run_doubles(function, x), function.of_f64(x));
            assert!(
                found.to_bits() == want.to_bits() || found.is_nan() && want.is_nan(),
                "{function:?}({x:e}): {found:e}, not {want:e}"
            );
        }
    }
}
