//! Finds vectors on the stack in the main loops of contractions.
//!
//! What does not fit the registers of a microkernel is spilled in silence, and each step then waits
//! for a store. `cargo test --bench spills` compiles `tracecast-codegen` as released and reads the
//! compiler's assembly: every innermost loop of a microkernel that multiplies vectors and adds. It
//! fails at an access of the stack that [`KNOWN`] does not list. No CPU needs to have the vectors.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode};

/// Loops that may access the stack: parts of a kernel's name, the most loads and stores of vectors
/// in a loop, and why. May only shrink.
const KNOWN: [(&[&str], [usize; 2], &str); 7] = [
    (
        &["gemm::Tile<avx2::Avx2F32, gemm::Strip<f32>, cell::Bf16"],
        [2, 2],
        "three rows by four vectors: 12 sums, the columns, a number; widened columns come in twos",
    ),
    (
        &["gemm::Tile<avx2::Avx2F32, gemm::Strip<f32>, cell::F16"],
        [1, 1],
        "the same; columns of f16 are read in place rarely, as packed ones are faster",
    ),
    (
        &["gemm::Tile<pairs::PairsF32, gemm::Strip<f32>, pairs::Apart"],
        [3, 3],
        "24 or 28 sums, the columns and their least magnitude; a spill is hidden by other products",
    ),
    (&["gemv::Product<"], [6, 13], "sums and a transposed square go through memory, once a square"),
    (&["depthwise::Lines<avx512", ", 5, "], [14, 0], "25 weights, which the loop only reads"),
    (&["depthwise::Lines<avx2"], [6, 0], "nine weights, which the loop only reads"),
    (&["sweep::Sized<avx2"], [2, 0], "masks, which the loop only reads"),
];

/// Kernels of which there must be loops, so that none is missed because a name changed.
const EXPECTED: [&str; 11] = [
    "gemm::Tile<avx512::Avx512F32, gemm::Strip",
    "gemm::Tile<avx512::Avx512F32, gemm::Taps",
    "gemm::Tile<avx512::Avx512F32, gemm::Spots",
    "gemm::Tile<avx512::Avx512F64",
    "gemm::Tile<pairs::PairsF32",
    "gemm::Tile<avx2::Avx2F32",
    "gemm::Tile<avx2::Avx2F64",
    "elementwise::",
    "alternating::",
    "sweep::",
    "gemv::",
];

/// A function with one main loop, which spills.
const SAMPLE: &str = "_RINvXC1mfNtC6vector6Vector3runuE:
	sub	rsp, 72
	vmovups	zmm2, zmmword ptr [rsp + 80]
.LBB0_1:
	vmovups	zmmword ptr [rsp], zmm1
	vbroadcastss	zmm1, dword ptr [rsp + 64]
	vfmadd231ps	zmm0, zmm1, zmmword ptr [rdi]
	vmovups	zmm1, zmmword ptr [rsp]
	vfmadd231ps	zmm1, zmm2, zmmword ptr [rsp + 80]
	dec	rsi
	jne	.LBB0_1
.Lfunc_end0:
";

/// An innermost loop that multiplies vectors.
struct Loop<'a> {
    kernel: String,
    body: Vec<&'a str>,
    products: usize,
    /// Loads and stores of vectors on the stack.
    stack: [usize; 2],
}

fn main() -> ExitCode {
    let sample: Vec<_> = loops(SAMPLE).iter().map(|found| (found.products, found.stack)).collect();
    assert_eq!(sample, [(2, [2, 1])], "the sample has a spill");
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        say("skipped: only assembly of x86-64 Linux is read\n");
        return ExitCode::SUCCESS;
    }
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tracecast_codegen.s");
    let mut emit = OsString::from("--emit=asm=");
    emit.push(&file);
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.args(["rustc", "--release", "--package", "tracecast-codegen", "--lib", "--"]);
    cargo.args(["-Csymbol-mangling-version=v0", "-Cllvm-args=-x86-asm-syntax=intel"]).arg(emit);
    let status = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().expect("cargo starts");
    assert!(status.success(), "tracecast-codegen does not compile");
    let text = std::fs::read_to_string(&file).expect("the compiler's assembly");
    let (report, failed) = judged(&loops(&text));
    say(&report);
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// A report about all loops, and whether one of them must not be.
fn judged(loops: &[Loop<'_>]) -> (String, bool) {
    let (mut lines, mut failed) = (vec![format!("{} main loops", loops.len())], false);
    let mut known = [([0; 2], 0); KNOWN.len()];
    for Loop { kernel, products, stack, body } in loops.iter().filter(|l| l.stack != [0; 2]) {
        let is_known = |(parts, ..): &(&[&str], _, _)| parts.iter().all(|p| kernel.contains(p));
        let place = KNOWN.iter().position(is_known);
        if let Some((most, count)) = place.map(|place| &mut known[place]) {
            *most = [0, 1].map(|i| most[i].max(stack[i]));
            *count += 1;
        }
        if place.is_none_or(|place| (0..2).any(|i| stack[i] > KNOWN[place].1[i])) {
            let text = body.join("\n    ");
            lines
                .push(format!("{products} products, {stack:?} on the stack: {kernel}\n    {text}"));
            failed = true;
        }
    }
    for ((parts, most, why), (found, count)) in KNOWN.iter().zip(known) {
        lines.push(format!("{count} loops, at most {found:?} of {most:?}: {parts:?}, {why}"));
        failed |= count == 0;
    }
    for name in EXPECTED.iter().filter(|name| !loops.iter().any(|l| l.kernel.contains(*name))) {
        lines.push(format!("no loop of {name}"));
        failed = true;
    }
    (lines.join("\n") + "\n", failed)
}

/// The innermost loops of microkernels that multiply vectors and add.
fn loops(assembly: &str) -> Vec<Loop<'_>> {
    let mut functions: Vec<(&str, Vec<&str>)> = Vec::new();
    let mut is_inside = false;
    for line in assembly.lines() {
        if let Some(name) = line.strip_suffix(':').filter(|name| name.starts_with("_R")) {
            functions.push((name, Vec::new()));
            is_inside = true;
        } else if line.starts_with(".Lfunc_end") {
            is_inside = false;
        } else if is_inside && !line.starts_with("\t.") {
            functions.last_mut().expect("a function").1.push(line.trim_start());
        }
    }
    let mut found = Vec::new();
    for (name, lines) in &functions {
        let kernel = format!("{:#}", rustc_demangle::demangle(name));
        let kernel = kernel.replace("tracecast_codegen::contract::micro::", "");
        let Some((_, kernel)) = kernel.split_once(" as vector::Vector>::run::<") else { continue };
        let has_frame = lines.contains(&"mov\trbp, rsp");
        for body in innermost(lines) {
            let products = body.iter().filter(|line| multiplies(line)).count();
            let on_stack = body.iter().filter(|line| accesses_stack(line, has_frame));
            let (to, from): (Vec<&str>, Vec<&str>) = on_stack.partition(|line| stores(line));
            if products > 0 {
                let (kernel, body, stack) = (kernel.to_owned(), body.to_vec(), [from, to]);
                found.push(Loop { kernel, body, products, stack: stack.map(|lines| lines.len()) });
            }
        }
    }
    found
}

/// What is between each jump backwards and its target, where no other such jump is inside.
fn innermost<'l, 'a>(lines: &'l [&'a str]) -> Vec<&'l [&'a str]> {
    let labels: HashMap<&str, usize> =
        lines.iter().enumerate().filter_map(|(i, l)| Some((l.strip_suffix(':')?, i))).collect();
    let target = |line: &str| Some(*labels.get(line.strip_prefix('j')?.split_once('\t')?.1)?);
    let jumps = lines.iter().enumerate().filter_map(|(i, line)| Some((target(line)?, i)));
    let mut innermost: Vec<(usize, usize)> = Vec::new();
    for (from, to) in jumps.filter(|(from, to)| from < to) {
        if !innermost.iter().any(|inner| from <= inner.0) {
            innermost.push((from, to));
        }
    }
    innermost.into_iter().map(|(from, to)| &lines[from..=to]).collect()
}

/// True of multiply-adds of whole vectors.
fn multiplies(line: &str) -> bool {
    let name = line.split('\t').next().unwrap_or_default();
    let is_fma = name.starts_with("vfm") || name.starts_with("vfnm");
    name == "vdpbf16ps" || is_fma && (name.ends_with("ps") || name.ends_with("pd"))
}

/// True of loads and stores of 16 bytes or more on the stack.
fn accesses_stack(line: &str, has_frame: bool) -> bool {
    let memory = line.split_once("mmword ptr [").map_or("", |(_, memory)| memory);
    memory.starts_with("rsp") || has_frame && memory.starts_with("rbp")
}

/// True if the first operand is in memory.
fn stores(line: &str) -> bool {
    line.split_once('\t').is_some_and(|(_, operands)| operands[1..].starts_with("mmword ptr ["))
}

fn say(text: &str) {
    std::io::stdout().write_all(text.as_bytes()).expect("a place to write to");
}
